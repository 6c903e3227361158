"""A start applies many records of the log at once. What is served then equals what a service serves
that applied them one by one, to the bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.changes import log
from service.codec.changes import read_change
from service.engine.calls import Condition, Filter, LookupRequest, RetrievalRequest, Target
from tests.bundles.small import GENRE_NAMES, STORED_USERS, SmallBundle
from tests.units.service.changes.making import candidate, change, deletion
from tests.units.service.running import RunningService, column

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]

CHANGES = 300
RUN_LENGTH = 4.0
"""Changes of one kind that follow each other, on average: a start applies them at once."""
NEVER_S = 4e9


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a log be read in many parts."""
    monkeypatch.setattr(log, "_READ_BYTES", 20_000)


def histories(random: np.random.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields changes: a path and a body each."""
    keys = [*range(1000, 1000 + 7 * 40, 7), *range(5000, 5030)]

    def chosen_keys() -> list[int]:
        chosen: list[int] = random.choice(keys, random.integers(1, 4), replace=False).tolist()
        return chosen

    def upsert() -> dict[str, Any]:
        items = [candidate(key, movie=int(random.choice(keys[:40]))) for key in chosen_keys()]
        for item in items:
            item["features"]["genres"] = random.choice(GENRE_NAMES, 2, replace=False).tolist()
        return {"items": items}

    def expiring() -> dict[str, Any]:
        return {"items": [candidate(key, expires_s=NEVER_S) for key in chosen_keys()]}

    def sent_vectors() -> dict[str, Any]:
        vectors = {"movies": random.standard_normal(8).tolist()}
        return {"items": [candidate(key, vectors=vectors) for key in chosen_keys()]}

    def numbered() -> dict[str, Any]:
        sequence = int(random.integers(5))
        return {"items": [candidate(key, sequence=sequence) for key in chosen_keys()]}

    def from_stream() -> dict[str, Any]:
        return {**upsert(), "stream": "items", "offset": int(random.integers(1000))}

    def rows() -> dict[str, Any]:
        items = [
            {"id": key, "vector": random.standard_normal(8).tolist()}
            for key in chosen_keys()
            if key < 5000
        ]
        return {"items": items or [{"id": 1000, "vector": [0.5] * 8}], "feature": "movie"}

    def user_rows() -> dict[str, Any]:
        vector = random.standard_normal(8).tolist()
        return {"items": [{"id": int(random.integers(50)), "vector": vector}], "table": "users"}

    def context() -> dict[str, Any]:
        (key,) = random.choice([*STORED_USERS], 1).tolist()
        liked = {"ids": [1000], "weights": [float(random.random())]}
        features = {"user": key, "liked": liked, "mood": random.standard_normal(2).tolist()}
        return {"items": [{"id": key, "features": features}]}

    bodies: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("candidates/upsert", upsert),
        ("candidates/upsert", expiring),
        ("candidates/upsert", sent_vectors),
        ("candidates/upsert", numbered),
        ("candidates/upsert", from_stream),
        ("candidates/delete", lambda: {"items": deletion(chosen_keys())}),
        (
            "candidates/attributes",
            lambda: {"items": [{"id": key, "attributes": {"year": 2031}} for key in chosen_keys()]},
        ),
        ("rows/upsert", rows),
        ("rows/upsert", user_rows),
        ("contexts/upsert", context),
        (
            "contexts/delete",
            lambda: {"items": deletion(random.choice([*STORED_USERS], 1).tolist())},
        ),
    ]
    while True:
        path, body = bodies[random.integers(len(bodies))]
        for _ in range(random.geometric(1 / RUN_LENGTH)):
            yield path, body()


def make(service: RunningService, target: Target, path: str, body: dict[str, Any]) -> Any:
    """Makes a change of a version."""
    kind, action = path.split("/")
    request = read_change(kind, action, body)  # type: ignore[arg-type]
    return service.worker.changes.change(target, request)


def served(service: RunningService, version: int) -> list[Any]:
    """Returns what a version serves, all of it."""
    target = Target("movies", version)
    vectors = np.random.default_rng(5).standard_normal((5, 8)).astype(np.float32)
    # The vector of no direction: all scores are equal, so that positions alone order the list.
    queries = np.concatenate([vectors, np.zeros((1, 8), np.float32)])
    later = Filter({"year": Condition(ge=2030)})
    responses = []
    for options in ({"k": 100}, {"k": 20, "filter": later}):
        retrieval = RetrievalRequest(
            target, vectors=queries, attributes=("title", "year"), **options
        )
        responses.append(service.execute(retrieval, "retrieve"))
    movies = LookupRequest(target, "movie", column(*range(1000, 1100, 7)))
    users = LookupRequest(target, "user", column(*range(50)))
    lookups = [service.execute(lookup, "lookup").vectors.tolist() for lookup in (movies, users)]
    lists = [
        [response.ids.tolist(), response.scores.tolist(), response.attributes]
        for response in responses
    ]
    return [lists, lookups]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_start_serves_what_a_service_serves_that_applied_each_change(
    write: Write, serve: Serve, root: Path, seed: int
) -> None:
    write(users=True)
    service = serve()
    write(version=2, users=True)
    service.scan()
    random = np.random.default_rng(seed)
    history = histories(random)
    for _ in range(CHANGES):
        version = int(random.choice([1, 2], p=[0.2, 0.8]))
        make(service, Target("movies", version), *next(history))
    (first, second) = service.worker.changes.status("movies")["versions"]
    assert first["dropped"]["the vectors belong to another version"] > 10

    # A start loads the newest version, and applies to it what was sent for both.
    older = root.with_name("root-without-version-2")
    shutil.copytree(root, older, ignore=shutil.ignore_patterns("2"))
    for version, restarted in ((first, RunningService(older)), (second, serve())):
        try:
            status = restarted.worker.changes.status("movies")
            assert status["versions"] == [version]
            number = version["version"]
            assert served(restarted, number) == served(service, number)
        finally:
            restarted.close()


def test_a_start_knows_the_sequences_and_offsets_of_all_parts(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    for number in range(60):
        item = candidate(5000 + number, sequence=number)
        change(service, "candidates/upsert", item, stream="items", offset=number + 1)
    restarted = serve()
    assert restarted.worker.changes.applied("movies").streams == {"items": 60}
    outdated = [candidate(5000 + number, sequence=30) for number in range(60)]
    result = change(restarted, "candidates/upsert", *outdated)
    assert result.outdated == tuple(range(5030, 5060))
