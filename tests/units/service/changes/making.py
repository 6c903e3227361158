"""Makes changes of a service in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.changes.requests import ChangeRequest, ChangeResult
from service.codec.changes import read_change
from service.engine.calls import RetrievalRequest, RetrievalResult, Target
from tests.units.service.running import RunningService

TARGET = Target("movies")
TREE = {
    "index_kind": "tree_ah",
    "parameters": {
        "num_leaves": 4,
        "leaves_to_search": 4,
        "dimensions_per_block": 2,
        "reorder": 40,
    },
}


def request_of(path: str, *items: Any, **options: Any) -> ChangeRequest:
    """Returns a request; `path`: such as `candidates/upsert`."""
    kind, action = path.split("/")
    body = {"items": list(items), **options}
    return read_change(kind, action, body)  # type: ignore[arg-type]


def change(service: RunningService, path: str, *items: Any, **options: Any) -> ChangeResult:
    """Makes a change; see `request_of`."""
    return service.worker.changes.change(TARGET, request_of(path, *items, **options))


def candidate(key: Any, movie: Any = 1007, **parts: Any) -> dict[str, Any]:
    """Returns a candidate of the small bundle that reads the row of another movie."""
    features = {"movie": movie, "genres": ["drama"], "year": 0.5}
    return {"id": key, "features": features, "attributes": {"title": f"New {key}"}, **parts}


def deletion(keys: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the items that delete candidates."""
    return [{"id": key} for key in keys]


def nearest(service: RunningService, vector: Any, k: int = 5, **options: Any) -> RetrievalResult:
    """Returns the candidates nearest to a vector."""
    retrieval = RetrievalRequest(TARGET, vectors=vector, k=k, **options)
    result: RetrievalResult = service.execute(retrieval, "retrieve")
    return result


def absorb(service: RunningService) -> None:
    """Has a service absorb all changed candidates that are searched exactly."""
    assert service.worker.changes.absorb(1)


def random_vectors(count: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Returns vectors, [count, dim]."""
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def add(service: RunningService, vectors: Any, first: int = 5000) -> None:
    """Adds a candidate with each of some vectors, 500 at a time."""
    items = [
        candidate(first + number, vectors={"movies": vector.tolist()})
        for number, vector in enumerate(vectors)
    ]
    for start in range(0, len(items), 500):
        change(service, "candidates/upsert", *items[start : start + 500])


def segments_of(service: RunningService) -> int:
    """Returns how many segments a service searches."""
    return len(service.current().indexes["movies"].segments)


def listed(service: RunningService, vectors: Any, **options: Any) -> list[Any]:
    """Returns the lists of the candidates nearest to vectors: ids, scores, offsets."""
    result = nearest(service, vectors, **options)
    return [result.ids.tolist(), result.scores.tolist(), result.offsets.tolist()]
