"""Makes changes of a service in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.changes.requests import ChangeResult
from service.codec.changes import read_change
from service.engine.calls import Retrieval, Retrieved, Target
from tests.service.running import RunningService

TARGET = Target("movies")


def change(service: RunningService, path: str, *items: Any, **options: Any) -> ChangeResult:
    """Makes a change; `path`: such as `candidates/upsert`."""
    kind, action = path.split("/")
    body = {"items": list(items), **options}
    request = read_change(kind, action, body)  # type: ignore[arg-type]
    return service.worker.changes.change(TARGET, request)


def candidate(key: Any, movie: Any = 1007, **parts: Any) -> dict[str, Any]:
    """Returns a candidate of the small bundle that reads the row of another movie."""
    features = {"movie": movie, "genres": ["drama"], "year": 0.5}
    return {"id": key, "features": features, "attributes": {"title": f"New {key}"}, **parts}


def deletion(keys: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the items that delete candidates."""
    return [{"id": key} for key in keys]


def nearest(service: RunningService, vector: Any, k: int = 5, **options: Any) -> Retrieved:
    """Returns the candidates nearest to a vector."""
    retrieval = Retrieval(TARGET, vectors=vector, k=k, **options)
    answer: Retrieved = service.execute(retrieval, "retrieve")
    return answer


def absorb(service: RunningService) -> None:
    """Has a service absorb all changed candidates that are searched exactly."""
    assert service.worker.changes.absorb(1)
