"""Filters by their definition: a truth table for each condition and candidate, against both
transports' answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import GENRE_NAMES, SmallBundle, write_small_bundle
from tests.service.cases import Case
from tests.service.clients import Clients
from tests.service.running import RunningService

CASES = 10_000
SIZE = 60
_BOUNDS = {
    "ge": lambda value, bound: value >= bound,
    "gt": lambda value, bound: value > bound,
    "le": lambda value, bound: value <= bound,
    "lt": lambda value, bound: value < bound,
}


def values_of(small: SmallBundle, attribute: str, at: int) -> list[Any]:
    """The values of a candidate's attribute, as the small bundle defines them."""
    values: dict[str, list[Any]] = {
        "genres": list(small.genres[at]),
        "year": [] if at == 1 else [1990 + at],
        "rating": [at / 4],
        "studio": [] if at % 7 == 3 else [f"studio {at % 5}"],
        "classic": [] if at == 2 else [at % 3 == 0],
    }
    return values[attribute]


def meets(values: list[Any], condition: Mapping[str, Any]) -> bool:
    """Whether a candidate with these values meets a condition: the truth table of
    docs/how-to/filter.md.
    """
    if any(value in condition.get("deny", ()) for value in values):
        return False
    if "allow" in condition and not any(value in condition["allow"] for value in values):
        return False
    bounds = [(name, condition[name]) for name in _BOUNDS if name in condition]
    return not bounds or any(
        all(_BOUNDS[name](value, bound) for name, bound in bounds) for value in values
    )


def some(random: Random, values: list[Any], least: int) -> list[Any]:
    return [random.choice(values) for _ in range(random.randint(least, 4))]


def a_condition(random: Random, attribute: str) -> dict[str, Any]:
    """A condition of at least one part, with values that candidates have and some that none has."""
    tokens_of: dict[str, list[Any]] = {
        "genres": [*GENRE_NAMES, "western"],
        "year": list(range(1985, 1995 + SIZE)),
        "studio": [*(f"studio {number}" for number in range(5)), "none"],
        "classic": [True, False],
    }
    tokens = tokens_of.get(attribute, [])
    numbers: list[Any] = (
        [*range(1985, 1995 + SIZE), 1999.5, -(2**60)]
        if attribute == "year"
        else [-1, 0, 2.5, 7, 99.75]
    )
    made: dict[str, Any] = {}
    while not made:
        if tokens and random.random() < 0.6:
            made["allow"] = some(random, tokens, 1)
        if tokens and random.random() < 0.4:
            made["deny"] = some(random, tokens, 0)
        for name in _BOUNDS if attribute in {"year", "rating"} else ():
            if random.random() < 0.3:
                made[name] = random.choice(numbers)
    return made


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[tuple[SmallBundle, Clients]]:
    root = tmp_path_factory.mktemp("root")
    small = write_small_bundle(root, small_towers, size=SIZE)
    service = RunningService(root)
    clients = Clients(service)
    yield small, clients
    clients.close()
    service.close()


@pytest.mark.slow
def test_filters_match_their_truth_table(served: tuple[SmallBundle, Clients]) -> None:
    small, clients = served
    random = Random(20)
    seen = set[int]()
    for number in range(CASES // 2):  # each over HTTP as JSON and over gRPC
        attributes = random.sample(
            ["genres", "year", "rating", "studio", "classic"], random.randint(0, 3)
        )
        asked = {attribute: a_condition(random, attribute) for attribute in attributes}
        query = np.array([random.gauss(0, 1) for _ in range(small.vectors.shape[1])], np.float32)
        k = random.choice([1, 3, SIZE, SIZE + 5])
        matching = [
            at
            for at in range(SIZE)
            if all(
                meets(values_of(small, attribute, at), condition)
                for attribute, condition in asked.items()
            )
        ]
        best = sorted(matching, key=lambda at: (-float(small.vectors[at] @ query), at))[:k]
        expected = [int(small.ids[at]) for at in best]
        case = Case("retrieve", "filtered", {"k": k, "vector": query.tolist(), "filter": asked})
        code, body = clients.by_http(case, protobuf=False)
        assert code == "OK", body
        assert [each["id"] for each in json.loads(body)["neighbors"]] == expected, (number, asked)
        code, body = clients.by_grpc(case)
        assert code == "OK", body
        found = pb.RetrieveResponse.FromString(body).neighbors.ids
        assert np.frombuffer(found.int64s, "<i8").tolist() == expected, (number, asked)
        seen.add(len(matching))
    assert {0, 1, SIZE} <= seen
