"""The corpus of the retrieval benchmark: clustered vectors, an attribute, queries and their exact
neighbors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

DIM = 64
K = 100
QUERIES = 1000
FILTERS = {"unfiltered": 100, "10 %": 10, "1 %": 1}
"""By name: candidates whose attribute is below the number match; it is spread evenly over 0 to 99.
"""
_SEED = 21
_CLUSTERS = 1000
_JUDGED = 200


def write_corpus(directory: Path, size: int) -> None:
    """Writes `vectors.npy` [size, DIM], `attribute.npy` [size], `queries.npy` [QUERIES, DIM] and
    `nearest-<below>.npy`.

    Clusters of Zipf sizes and log-normal lengths, as item towers make them; queries are means of
    some items of a few clusters, as of users' histories. Distance is the dot product.
    """
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(_SEED)
    centers = _unit(random.standard_normal((_CLUSTERS, DIM), np.float32))
    shares = 1 / np.arange(1, _CLUSTERS + 1) ** 0.6
    cluster = random.choice(_CLUSTERS, size, p=shares / shares.sum())
    vectors = centers[cluster] + random.standard_normal((size, DIM), np.float32) * np.float32(
        0.75 / DIM**0.5
    )
    vectors = _unit(vectors) * np.exp(
        random.standard_normal((size, 1), np.float32) * np.float32(0.2)
    )
    attribute = random.integers(0, 100, size)
    seeds = random.integers(0, size, (QUERIES, 3))
    queries = _unit(np.stack([vectors[items].mean(0) for items in seeds]))
    for name, values in (("vectors", vectors), ("attribute", attribute), ("queries", queries)):
        np.save(directory / f"{name}.npy", values)
    for below in FILTERS.values():
        matching = np.flatnonzero(attribute < below)
        subset = vectors[matching]
        nearest = [
            matching[np.argsort(-(subset @ query), kind="stable")[:K]]
            for query in queries[:_JUDGED]
        ]
        np.save(directory / f"nearest-{below}.npy", np.stack(nearest))


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit
