"""LitServe: two workers, each with the model: `litserve_server.py PORT`."""

# No annotations from __future__: LitServe looks at those of decode_request.
import os
import sys
from typing import Any

import litserve
from fastapi import Request


class Ranker(litserve.LitAPI):  # type: ignore[misc]  # untyped here
    def setup(self, device: str) -> None:
        from model import load

        self.score = load()

    def decode_request(self, request: Request) -> Any:
        return request

    def predict(self, request: dict[str, Any]) -> Any:
        return self.score(request["context_ids"], request["numbers"], request["candidate_ids"])

    def encode_response(self, output: Any) -> dict[str, list[float]]:
        return {"score": output.tolist()}


if __name__ == "__main__":
    workers = int(os.environ.get("PEER_CORES", "2"))
    server = litserve.LitServer(Ranker(api_path="/rank"), accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
