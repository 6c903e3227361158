"""Retrieval as one would write it by hand: FastAPI, a query tower in TensorFlow, and ScaNN.

It reads the rows, the tower and the vectors of the bundle that `PEER_MODEL` names, and builds its
index with the bundle's parameters: `uvicorn retrieval_app:app`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import scann
import tensorflow as tf
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel

BUNDLE = Path(os.environ["PEER_MODEL"])
MANIFEST = json.loads((BUNDLE / "manifest.json").read_bytes())
INDEX = MANIFEST["indexes"]["items"]


def rows_of(file: str) -> NDArray[np.float32]:
    return np.fromfile(BUNDLE / file, "<f4").reshape(-1, INDEX["dim"])


def searcher_of(vectors: NDArray[np.float32]) -> Any:
    parameters = INDEX["parameters"]
    builder = scann.scann_ops_pybind.builder(vectors, INDEX["recall"]["k"], INDEX["distance"])
    tree = builder.tree(
        parameters["num_leaves"], parameters["leaves_to_search"], training_sample_size=100_000
    )
    hashed = tree.score_ah(
        parameters["dimensions_per_block"], anisotropic_quantization_threshold=0.2
    )
    return hashed.reorder(parameters["reorder"]).build()


tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("PEER_CORES", "2")))
users = rows_of(MANIFEST["tables"]["users"]["segments"][0]["file"])
items = rows_of(INDEX["vectors"])
saved = tf.saved_model.load(str(BUNDLE / "towers" / "query" / "saved_model"))
tower = saved.signatures["serving_default"]
searcher = searcher_of(items)
app = FastAPI()


class Request(BaseModel):
    user: int
    history: list[int]


@app.post("/retrieve")
def retrieve(request: Request) -> dict[str, list[Any]]:
    query = tower(
        user=users[request.user][np.newaxis],
        history=items[request.history].mean(axis=0, keepdims=True),
    )["vector"]
    ids, scores = searcher.search(query.numpy()[0])
    return {"ids": ids.tolist(), "scores": scores.tolist()}
