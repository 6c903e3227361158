"""Changes models as operators and their programs do: by the admin API of a service in the process
of the tests, and by its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from service.versions.state_file import StateFile
from tests.e2e.process import WAIT_S, until
from tests.units.service.running import RunningService

TREE = {
    "index_kind": "tree_ah",
    "parameters": {
        "num_leaves": 4,
        "leaves_to_search": 4,
        "dimensions_per_block": 2,
        "reorder": 40,
    },
}


class Rejected(Exception):
    """A service rejected a request.

    Attributes:
      code: The code of the error.
      message: Its message.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.message = error["message"]


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """Sends a request without TLS: loading certificates would take longer than most requests."""
    return httpx.request(method, url, timeout=WAIT_S, verify=False, trust_env=False, **options)


def operate(
    service: RunningService, method: str, path: str, timeout_s: float = WAIT_S, **options: Any
) -> dict[str, Any]:
    """Calls the admin API; returns the response.

    Args:
      service: The service.
      method: The HTTP method.
      path: The path behind the model.
      timeout_s: The deadline of the request.
      options: The options of httpx.

    Raises:
      Rejected: The service responded with an error.
    """
    headers = {"x-request-timeout-ms": str(round(1000 * timeout_s))}
    url = f"{service.admin}/v1/models/movies/{path}"
    response = request(method, url, headers=headers, **options)
    content: dict[str, Any] = response.json()
    if "error" in content:
        raise Rejected(content["error"])
    return content


def change(
    service: RunningService, path: str, *items: Any, timeout_s: float = WAIT_S, **options: Any
) -> dict[str, Any]:
    """Makes a change.

    Args:
      service: The service.
      path: What is done, such as `candidates/upsert`.
      items: The items of the body.
      timeout_s: The deadline of the request.
      options: The other fields of the body.

    Raises:
      Rejected: The change was rejected.
    """
    body = {"items": list(items), **options}
    return operate(service, "POST", path, timeout_s, json=body)


def status(service: RunningService, timeout_s: float = WAIT_S) -> dict[str, Any]:
    """Returns what was changed since the export, as operators see it."""
    return operate(service, "GET", "changes", timeout_s)


def applied(service: RunningService) -> int:
    """Returns the sequence of the last change that is served."""
    return int(service.value("rowcast_change_sequence", model="movies"))


def until_applied(writer: RunningService, *services: RunningService) -> None:
    """Waits until services serve all that is in the changes file of one of them."""
    sequence = status(writer)["sequence"]
    followed = "rowcast_changes_followed"
    for service in (writer, *services):
        until(lambda: applied(service) >= sequence)  # noqa: B023
        # A router that waits for shards has read what it does not serve.
        until(lambda: service.value(followed, model="movies") == 1)  # noqa: B023


def deny(service: RunningService, *keys: Any) -> None:
    """Has a service, and all that share its state file, withdraw candidates."""
    denied = tuple([str(key) for key in keys])
    StateFile.of(service.settings).update(
        lambda desired: desired.with_model("movies", desired.of("movies").changed(denied=denied))
    )
    until(lambda: service.value("rowcast_denied_ids", model="movies") == len(denied))


def candidate(key: Any, movie: Any = 1007, **parts: Any) -> dict[str, Any]:
    """Returns a candidate of the small bundle that reads the row of another movie."""
    features = {"movie": movie, "genres": ["drama"], "year": 0.5}
    return {"id": key, "features": features, "attributes": {"title": f"New {key}"}, **parts}


def deletion(keys: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the items that delete candidates."""
    return [{"id": key} for key in keys]


def responds(
    service: RunningService, call: str, headers: dict[str, str] | None = None, **body: Any
) -> dict[str, Any]:
    """Returns the response to a call over HTTP.

    Raises:
      Rejected: The service responded with an error.
    """
    url = f"{service.http}/v1/models/movies:{call}"
    response = request("POST", url, json=body, headers=headers)
    content: dict[str, Any] = response.json()
    if "error" in content:
        raise Rejected(content["error"])
    return content


def nearest(service: RunningService, vectors: Any, k: int = 5, **options: Any) -> list[list[Any]]:
    """Returns the ids and scores of the candidates nearest to each of some vectors."""
    of_each = {name: options.pop(name) for name in ("exclude_ids",) if name in options}
    requests = [
        {"vectors": [vector], **of_each} for vector in np.reshape(vectors, (-1, 8)).tolist()
    ]
    content = responds(service, "retrieve", requests=requests, k=k, **options)
    return [[result["ids"], result["scores"]] for result in content["results"]]


def ids_of(service: RunningService, **options: Any) -> set[Any]:
    """Returns the ids of all candidates."""
    return {*nearest(service, [1.0] * 8, **{"k": 1000, **options})[0][0]}


def file_of(service: RunningService) -> Path:
    """Returns the changes file of a service."""
    return (service.settings.changes_dir or service.settings.root) / "movies" / "changes.sqlite"


def random_vectors(count: int, dim: int = 8, seed: int = 0) -> NDArray[np.float32]:
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
