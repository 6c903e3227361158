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
from tests.cases.rejected_changes import ATTRIBUTES
from tests.units.service.changes.making import candidate
from tests.units.service.running import RunningService

TOKEN = "0123456789abcdef-of-the-catalog"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
KEY = 9000
FEATURES: dict[str, dict[str, Any]] = {
    "candidates": candidate(KEY)["features"],
    "contexts": {"user": 3, "liked": [1000], "mood": [0.5, -1.0]},
}
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
        self._client = httpx.Client(base_url=service.http, headers=HEADERS, timeout=60)

    def close(self) -> None:
        self._client.close()

    def rank(self, **options: Any) -> Result:
        code, content = self._send(":rank", options)
        return code, content.get("scores")

    def upsert(self, kind: str, features: dict[str, Any]) -> str:
        return self._send(f"/{kind}/upsert", {"items": [{"id": KEY, "features": features}]})[0]

    def set_attribute(self, name: str, value: Any) -> str:
        items = [{"id": 1000, "attributes": {name: value}}]
        return self._send("/candidates/attributes", {"items": items})[0]

    def _send(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        response = self._client.post(f"/v1/models/movies{path}", json=body)
        content: dict[str, Any] = response.json()
        return content.get("error", {}).get("code", "OK"), content


class Library:
    """Sends messages by the client library."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, token=TOKEN)

    def close(self) -> None:
        self._client.close()

    def rank(self, **options: Any) -> Result:
        scores = []
        features = options.pop("candidate_features", None)
        if "context_id" in options:
            options["context_ids"] = [options.pop("context_id")]

        def send() -> None:
            ranked = self._client.rank(candidate_features=features, **options)
            scores.append(ranked[0].scores.tolist())

        code = _code(send)
        return code, next(iter(scores), None)

    def upsert(self, kind: str, features: dict[str, Any]) -> str:
        upsert = getattr(self._client, f"upsert_{kind}")
        return _code(lambda: upsert([KEY], {name: [value] for name, value in features.items()}))

    def set_attribute(self, name: str, value: Any) -> str:
        return _code(lambda: self._client.set_candidate_attributes([1000], {name: [value]}))


def _code(send: Callable[[], Any]) -> str:
    try:
        send()
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


@given(st.sampled_from(["movie", "genres", "year"]), VALUES)
@example("movie", "1007")
@example("movie", [(1 << 53) + 1, "9007199254740993"])
@example("year", ["1", 1, 2])
@example("year", [7])
@example("genres", ["drama", "new"])
def test_candidate_is_accepted_as_one_that_a_ranking_sends(
    way: Json | Library, name: str, value: Any
) -> None:
    features = FEATURES["candidates"] | {name: value}
    context = {"user": 7, "hour": 9.0}
    inline = {key: [feature] for key, feature in features.items()}
    code, scores = way.rank(context=context, candidate_features=inline)
    assert way.upsert("candidates", features) == code
    if code == "OK":
        assert way.rank(context=context, candidate_ids=[KEY]) == ("OK", scores)


@given(st.sampled_from(["user", "liked", "mood"]), VALUES)
@example("liked", {"ids": ["1000", 1007], "weights": [0.5, 2]})
@example("liked", {"ids": [1000], "weights": ["0.5"]})
@example("mood", ["1", 2])
def test_context_is_accepted_as_one_that_a_ranking_sends(
    way: Json | Library, name: str, value: Any
) -> None:
    features = FEATURES["contexts"] | {name: value}
    code, scores = way.rank(context=features, candidate_ids=[1000, 1007])
    assert way.upsert("contexts", features) == code
    if code == "OK":
        stored = way.rank(context={}, context_id=KEY, candidate_ids=[1000, 1007])
        assert stored == ("OK", scores)


@pytest.mark.parametrize(("name", "kind", "value"), ATTRIBUTES)
def test_attribute_of_another_type_is_rejected(
    way: Json | Library, name: str, kind: str, value: Any
) -> None:
    assert way.set_attribute(name, value) == "INVALID_ARGUMENT"


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
    assert way.set_attribute(name, value) == "OK"
    body = {"vectors": [[1.0] * 8], "k": 1000, "exact": True, "attributes": [name]}
    url = f"{service.http}/v1/models/movies:retrieve"
    content = httpx.post(url, json=body, headers=HEADERS, timeout=60).json()
    stored = content["attributes"][name][content["ids"].index(1000)]
    assert (stored, type(stored)) == (expected, type(expected))
