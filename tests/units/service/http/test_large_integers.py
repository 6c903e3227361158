"""A version beyond 2^53, which most JSON parsers round: a string in every response, taken as one
wherever versions, bounds, sequences and offsets are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bundles.small import write_small_bundle
from tests.units.service.running import RunningService

LARGE = 2**53 + 1
VERSION = f"/v1/models/movies/versions/{LARGE}"
CONTEXT = {"user": 3}
CHANGE = {
    "items": [{"id": 1000, "attributes": {"year": LARGE}, "sequence": str(LARGE)}],
    "stream": "large",
    "offset": str(LARGE),
}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, version=LARGE)
    running = RunningService(root)
    yield running
    running.close()


def check_integers(value: Any) -> None:
    """Checks that JavaScript keeps all integers of a response."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            check_integers(entry)
    elif isinstance(value, int):
        assert abs(value) < 2**53


def test_large_integers_are_strings_in_every_response(service: RunningService) -> None:
    changed = httpx.post(f"{service.admin}/v1/models/movies/candidates/attributes", json=CHANGE)
    assert changed.json()["version"] == str(LARGE)
    assert changed.json()["stream_offset"] == str(LARGE)
    pages = ("/v1/models", "/v1/models/movies", VERSION)
    responses = [httpx.get(service.http + page) for page in pages]
    bodies = {
        "retrieve": {"context": CONTEXT, "attributes": ["year"]},
        "recommend": {"requests": [{"context": CONTEXT}]},
        "rank": {"context": CONTEXT, "candidate_ids": [1000]},
        "embed": {"tower": "query", "features": CONTEXT},
        "lookup": {"feature": "user", "ids": [3]},
    }
    responses += [
        httpx.post(f"{service.http}{VERSION}:{call}", json=body) for call, body in bodies.items()
    ]
    paths = ("/v1/status", "/v1/models/movies/changes", "/v1/report")
    responses += [httpx.get(service.admin + path) for path in paths]
    for response in responses:
        assert response.status_code == 200, response.text
        assert str(LARGE) in response.text
        check_integers(response.json())


def test_large_integers_are_accepted_as_strings(service: RunningService) -> None:
    pinned = httpx.post(f"{service.admin}/v1/models/movies/pin", json={"versions": [str(LARGE)]})
    assert pinned.status_code == 200, pinned.text
    label = {"label": "stable", "version": str(LARGE)}
    labelled = httpx.post(f"{service.admin}/v1/models/movies/label", json=label)
    assert labelled.status_code == 200, labelled.text
    # Of the candidate that the other test changes, or not: both forms of a bound are the same.
    ids = [
        httpx.post(
            f"{service.http}/v1/models/movies:retrieve",
            json={"context": CONTEXT, "filter": {"year": {name: bound}}},
        ).json()["ids"]
        for name in ("le", "gt")
        for bound in (LARGE, str(LARGE))
    ]
    assert ids[0] == ids[1] != ids[2] == ids[3]
