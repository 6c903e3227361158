"""Recommendations from several sources, against loops that merge, rank and pick one candidate after
the other; and what becomes of sources that are wrong, fail or are late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.codec.json import read_recommendation, recommended_value
from service.engine.calls import Target
from service.errors import (
    DeadlineExceeded,
)
from tests.random_cases import seeds
from tests.units.service import reference_sources
from tests.units.service.engine.served import Served, SlowTower

Load = Callable[..., Served]
Body = dict[str, Any]
REQUESTS = 120
IDS = [1000 + 7 * position for position in range(40)]
INDEX: Body = {"index": "movies"}


def recommended(service: Served, body: Body, timeout_s: float = math.inf) -> Body:
    """The response to a JSON body, as a JSON value with a list of results."""
    request = read_recommendation(body, Target(), service.settings)
    fields = {name: value for name, value in vars(request).items() if name != "target"}
    result = service.recommend(timeout_s, **fields)
    value = recommended_value(result, is_list=True)
    value["results"] = [*value["results"]]
    return value


class RandomBodies:
    """Draws recommendations from one to four sources."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def draw(self) -> Body:
        body: Body = {"k": self._number(1, 16)}
        parts = [self._part() for _ in range(self._number(1, 4))]
        body["sources"] = [self._source(number, len(parts)) for number in range(self._number(1, 5))]
        readers = [source.get("list", source.get("index")) for source in body["sources"]]
        if {*readers} - {None, "new"}:  # they read the city
            for part in parts:
                part["context"]["city"] = ("oslo", "lima")[self._number(0, 2)]
        room = body["k"]
        for source in body["sources"]:
            if self._chance(0.3):
                source["min_count"] = self._number(0, room + 1)
                room -= source["min_count"]
            if self._chance(0.3):
                source["max_count"] = source.get("min_count", 0) + self._number(1, 6)
        has_minimum = any(source.get("min_count") for source in body["sources"])
        has_index = any("index" in source for source in body["sources"])
        if self._chance(0.2):
            body["pool_size"] = body["k"] + self._number(0, 20)
            if self._chance(0.5) and not has_minimum:
                body["offset"] = self._number(0, body["pool_size"] - body["k"] + 1)
        if self._chance(0.3):
            body["crowding"] = {"studio": self._number(1, 4)}
        if self._chance(0.3) and has_index:
            body["diversity"] = round(float(self._random.random()), 2)
        if self._chance(0.2):
            body["min_score"] = float(self._number(-2, 2))
        if self._chance(0.3):
            body["filter"] = {"year": {"ge": 1990 + self._number(0, 30)}}
        if self._chance(0.3):
            body["formula"] = "watch + rating / 10"
            if has_index:
                body["formula"] += " + 0.1 * retrieval_score"
        if self._chance(0.4):
            body["keep"] = body["k"] + body.get("offset", 0) + self._number(0, 12)
        if len(parts) == 1:
            return body | parts[0]
        return body | {"requests": parts}

    def _part(self) -> Body:
        part: Body = {"context": {"user": self._number(1, 50)}}
        if self._chance(0.4):
            part["exclude_ids"] = self._ids(12)
        return part

    def _source(self, number: int, contexts: int) -> Body:
        source: Body = {"name": f"source {number}", "fallback": self._chance(0.25)}
        if self._chance(0.5):
            source["index"] = ("movies", "opposite")[self._number(0, 2)]
            source["pool_size"] = self._number(1, 20)
            return source
        if self._chance(0.4):
            source["list"] = ("popular", "new")[self._number(0, 2)]
            if self._chance(0.3):
                source["pool_size"] = self._number(1, 4)
            return source
        source["ids"] = self._ids(15)
        if self._chance(0.4) and contexts > 1:
            source["ids"] = [self._ids(15) for _ in range(contexts)]
        if self._chance(0.3):
            source["pool_size"] = self._number(1, 9)
        return source

    def _ids(self, end: int) -> list[int]:
        """Ids, some of them twice, and some unknown."""
        drawn = [IDS[self._number(0, 40)] for _ in range(self._number(0, end))]
        return drawn + [5] * self._number(0, 2)

    def _number(self, first: int, end: int) -> int:
        return int(self._random.integers(first, end))

    def _chance(self, share: float) -> bool:
        return bool(self._random.random() < share)


def test_sources_are_merged_ranked_and_picked_as_by_loops(
    load: Load, request: pytest.FixtureRequest
) -> None:
    service = load(more_indexes=("opposite",), users=True, lists=True, keep=1000)
    for seed in seeds(request, 1, 51):
        bodies = RandomBodies(seed)
        for _ in range(REQUESTS):
            body = bodies.draw()
            response = recommended(service, body)
            assert response["degraded_reason"] == ""
            expected = reference_sources.responses(service.small, body)
            for result, wanted in zip(response["results"], expected, strict=True):
                assert result["ids"] == wanted["ids"], body
                assert result["sources"] == wanted["sources"], body
                for scores in ("scores", "retrieval_scores"):
                    np.testing.assert_allclose(result[scores], wanted[scores], 1e-4, 1e-4)


def test_source_without_time_is_left_out_with_its_reason_and_the_others_are_served(
    load: Load,
) -> None:
    service = load()
    service.wrapped("query", SlowTower)
    body: Body = {"k": 3, "sources": [{**INDEX, "pool_size": 5}, {"ids": IDS[:6]}]}
    body["requests"] = [{"context": {"user": user}} for user in range(1, 11)]
    whole = recommended(service, body)
    assert {name for result in whole["results"] for name in result["sources"]} == {"movies", "ids"}

    hurried = recommended(service, body, timeout_s=1.5)
    reason = hurried["degraded_reason"]
    assert reason.startswith("source 'movies' is left out: ")
    assert "ms remained, and it takes about 1" in reason
    assert {name for result in hurried["results"] for name in result["sources"]} == {"ids"}
    assert all(len(result["ids"]) == 3 for result in hurried["results"])
    labels = {"model": "movies", "outcome": "late"}
    assert service.value("rowcast_sources_left_out_total", **labels) == 1
    assert service.value("rowcast_degraded_total", model="movies") == 1


def test_request_without_time_for_any_source_has_passed_its_deadline(load: Load) -> None:
    service = load(more_indexes=("opposite",))
    service.wrapped("query", SlowTower)
    body: Body = {"sources": [INDEX, {"index": "opposite"}]}
    body["requests"] = [{"context": {"user": user}} for user in range(1, 11)]
    recommended(service, body)
    with pytest.raises(DeadlineExceeded, match="ms remained, and it takes about"):
        recommended(service, body, timeout_s=0.9)
