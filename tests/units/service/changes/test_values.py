"""A change takes the values that a request takes, and stores what they mean to a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rowcast_client import Client, RowcastError

from tests.bundles.small import write_small_bundle
from tests.differential.random_changes import send
from tests.e2e.process import WAIT_S
from tests.units.service.changes.making import candidate, responds
from tests.units.service.running import RunningService

TOKEN = "0123456789abcdef-of-the-catalog"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
KEY = 9000
FEATURES: dict[str, dict[str, Any]] = {
    "candidates": candidate(KEY)["features"],
    "contexts": {"user": 3, "liked": [1000], "mood": [0.5, -1.0]},
}
INPUTS = [(kind, name) for kind, features in FEATURES.items() for name in features]
SCALARS = st.sampled_from(
    [
        *[1000, 1007, 7, 0, -1, (1 << 53) + 1, 1 << 63],
        *[1007.0, 0.5, -0.0, 1e6, 1e39, True, None],
        *["1007", "1000", "7", "007", "-0", "drama", "", "é", "9007199254740993"],
    ]
)
LISTS = st.lists(SCALARS, max_size=3)
WEIGHTED = st.fixed_dictionaries({"ids": LISTS, "weights": LISTS})
VALUES = SCALARS | LISTS | st.lists(LISTS, max_size=3) | WEIGHTED
Result = tuple[str, Any]
"""The code of the error and nothing, or "OK" and scores."""


class Json:
    """Sends JSON bodies as operators and programs do."""

    def __init__(self, service: RunningService) -> None:
        self._client = httpx.Client(base_url=service.http, headers=HEADERS, verify=False)

    def close(self) -> None:
        self._client.close()

    def rank(self, **options: Any) -> Result:
        code, content = self._send(":rank", options)
        return code, content.get("scores")

    def change(self, path: str, item: dict[str, Any]) -> str:
        return self._send(f"/{path}", {"items": [item]})[0]

    def _send(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        response = self._client.post(f"/v1/models/movies{path}", json=body)
        content: dict[str, Any] = response.json()
        return content.get("error", {}).get("code", "OK"), content


class Library:
    """Sends messages by the client library."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, token=TOKEN, timeout_s=WAIT_S)

    def close(self) -> None:
        self._client.close()

    def rank(self, **options: Any) -> Result:
        if "context_id" in options:
            options["context_ids"] = [options.pop("context_id")]
        try:
            ranked = self._client.rank(**options)
        except RowcastError as problem:
            return problem.code, None
        return "OK", ranked[0].scores.tolist()

    def change(self, path: str, item: dict[str, Any]) -> str:
        try:
            send(self._client, (path, {"items": [item]}))
        except RowcastError as problem:
            return problem.code
        return "OK"


@pytest.fixture(scope="module")
def service(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, users=True)
    tokens = root.with_name("tokens")
    tokens.write_text(f"catalog {TOKEN}\n")
    service = RunningService(root, tokens=tokens, changes_from=("catalog",))
    yield service
    service.close()


@pytest.fixture(scope="module", params=["json", "http", "grpc"])
def way(service: RunningService, request: pytest.FixtureRequest) -> Iterator[Json | Library]:
    ways: dict[str, Callable[[], Json | Library]] = {
        "json": lambda: Json(service),
        "http": lambda: Library(service.http),
        "grpc": lambda: Library(f"grpc://{service.grpc}"),
    }
    way = ways[request.param]()
    yield way
    way.close()


def requests_of(kind: str, features: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a ranking that sends features, and one by the id under which they are stored."""
    if kind == "contexts":
        ranked = {"candidate_ids": [1000, 1007]}
        return [{"context": features, **ranked}, {"context": {}, "context_id": KEY, **ranked}]
    context = {"user": 7, "hour": 9.0}
    inline = {name: [value] for name, value in features.items()}
    return [
        {"context": context, "candidate_features": inline},
        {"context": context, "candidate_ids": [KEY]},
    ]


@given(st.sampled_from(INPUTS), VALUES)
@example(("candidates", "movie"), "1007")
@example(("candidates", "movie"), [(1 << 53) + 1, "9007199254740993"])
@example(("candidates", "year"), ["1", 1, 2])
@example(("candidates", "year"), [7])
@example(("candidates", "genres"), ["drama", "new"])
@example(("contexts", "liked"), {"ids": ["1000", 1007], "weights": [0.5, 2]})
@example(("contexts", "liked"), {"ids": [1000], "weights": ["0.5"]})
@example(("contexts", "mood"), ["1", 2])
def test_features_are_accepted_as_those_that_a_ranking_sends(
    way: Json | Library, changed: tuple[str, str], value: Any
) -> None:
    kind, name = changed
    features = FEATURES[kind] | {name: value}
    sent, stored = requests_of(kind, features)
    code, scores = way.rank(**sent)
    assert way.change(f"{kind}/upsert", {"id": KEY, "features": features}) == code
    if code == "OK":
        assert way.rank(**stored) == ("OK", scores)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("year", 2027.0, 2027),
        ("year", -0.0, 0),
        ("year", "9007199254740993", "9007199254740993"),
        ("year", None, None),
        ("rating", 3, 3.0),
        ("rating", None, None),
        ("genres", [], []),
        ("genres", ["é", "é"], ["é", "é"]),
        ("title", "", ""),
        ("classic", False, False),
    ],
)
def test_attribute_is_stored_with_its_type(
    way: Json | Library, service: RunningService, name: str, value: Any, expected: Any
) -> None:
    item = {"id": 1000, "attributes": {name: value}}
    assert way.change("candidates/attributes", item) == "OK"
    body: dict[str, Any] = {"vectors": [[1.0] * 8], "k": 1000, "exact": True, "attributes": [name]}
    content = responds(service, "retrieve", HEADERS, **body)
    stored = content["attributes"][name][content["ids"].index(1000)]
    assert (stored, type(stored)) == (expected, type(expected))
