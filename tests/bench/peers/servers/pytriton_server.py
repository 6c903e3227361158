"""pytriton (NVIDIA Triton): two inference callables over one model: `pytriton_server.py HTTP_PORT GRPC_PORT`."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from model import load
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

FEATURES = 13


def main() -> None:
    score = load()

    def infer(requests: list[Any]) -> list[dict[str, Any]]:
        return [{"score": score(each["context_ids"], each["numbers"], each["candidate_ids"])} for each in requests]

    http, grpc, metrics = map(int, sys.argv[1:4])
    loopback = "127.0.0.1"
    config = TritonConfig(
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        http_address=loopback,
        grpc_address=loopback,
        log_verbose=0,
    )
    inputs = [
        Tensor(name="context_ids", dtype=np.int64, shape=(FEATURES,)),
        Tensor(name="numbers", dtype=np.float32, shape=(FEATURES,)),
        Tensor(name="candidate_ids", dtype=np.int64, shape=(-1, FEATURES)),
    ]
    with Triton(config=config) as triton:
        triton.bind(
            model_name="ranking",
            infer_func=[infer] * int(os.environ.get("PEER_CORES", "2")),
            inputs=inputs,
            outputs=[Tensor(name="score", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(batching=False),
        )
        triton.serve()


if __name__ == "__main__":
    main()
