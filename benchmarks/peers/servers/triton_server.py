"""NVIDIA Triton with its dynamic batcher, by pytriton:
`triton_server.py HTTP_PORT GRPC_PORT METRICS_PORT QUEUE_DELAY_US`.
"""

from __future__ import annotations

import os
import sys

import numpy as np
from model import BATCH, load
from numpy.typing import NDArray
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

FEATURES = 13
CANDIDATES = 200
BATCH_MAX = 16


def main() -> None:
    http_port, grpc_port, metrics_port, queue_delay_us = map(int, sys.argv[1:])
    score = load(BATCH)

    @batch  # type: ignore[untyped-decorator]
    def infer(**inputs: NDArray[np.generic]) -> dict[str, NDArray[np.float32]]:
        return {"score": score(**inputs)}

    loopback = "127.0.0.1"
    ports = TritonConfig(
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        http_address=loopback,
        grpc_address=loopback,
        metrics_address=loopback,
        log_verbose=0,
    )
    batcher = DynamicBatcher(max_queue_delay_microseconds=queue_delay_us)
    with Triton(config=ports) as triton:
        triton.bind(
            model_name="ranking",
            infer_func=[infer] * int(os.environ.get("PEER_CORES", "2")),
            inputs=[
                Tensor(name="context_ids", dtype=np.int64, shape=(FEATURES,)),
                Tensor(name="numbers", dtype=np.float32, shape=(FEATURES,)),
                Tensor(name="candidate_ids", dtype=np.int64, shape=(CANDIDATES, FEATURES)),
            ],
            outputs=[Tensor(name="score", dtype=np.float32, shape=(CANDIDATES,))],
            config=ModelConfig(batching=True, max_batch_size=BATCH_MAX, batcher=batcher),
        )
        triton.serve()


if __name__ == "__main__":
    main()
