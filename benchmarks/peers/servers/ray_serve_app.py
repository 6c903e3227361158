"""Ray Serve: two replicas, each with the model: `ray_serve_app.py PORT SCRATCH`.

With RAY_SERVE_ENABLE_HA_PROXY and RAY_SERVE_THROUGHPUT_OPTIMIZED in the environment HAProxy stands
before the replicas in place of Ray's own proxy, which is what its documentation advises for
throughput.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import orjson
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

CORES = int(os.environ.get("PEER_CORES", "2"))


@serve.deployment(num_replicas=CORES, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
class Ranker:
    def __init__(self) -> None:
        from model import load

        self.score = load()

    async def __call__(self, request: Request) -> Response:
        inputs: dict[str, Any] = orjson.loads(await request.body())
        scores = self.score(inputs["context_ids"], inputs["numbers"], inputs["candidate_ids"])
        body = orjson.dumps({"score": scores}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")


def main() -> None:
    port = int(sys.argv[1])
    scratch = sys.argv[2]
    ray.init(
        address="local",
        num_cpus=CORES,
        include_dashboard=False,
        _temp_dir=scratch,
        object_store_memory=200 << 20,
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Ranker.bind(), route_prefix="/rank")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
