"""Filters by their definition: a truth table for each condition, group and candidate, against the
responses of both transports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import GENRE_NAMES, SmallBundle, write_small_bundle
from tests.random_cases import seeds
from tests.units.service import reference
from tests.units.service.cases import Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

SIZE = 60
BOUNDS = ("ge", "gt", "le", "lt")
ATTRIBUTES = ("genres", "year", "rating", "studio", "classic")


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
    condition: dict[str, Any] = {}
    if random.random() < 0.1:
        condition["is_null"] = random.random() < 0.5
    while not condition:
        if tokens and random.random() < 0.6:
            condition["allow"] = some(random, tokens, 1)
        if tokens and random.random() < 0.4:
            condition["deny"] = some(random, tokens, 0)
        for name in BOUNDS if attribute in {"year", "rating"} else ():
            if random.random() < 0.3:
                condition[name] = random.choice(numbers)
    return condition


def a_circle(random: Random) -> dict[str, Any]:
    """A circle anywhere, of any size: some hold a pole, some cross the date line."""
    return {
        "latitude": random.uniform(-90, 90),
        "longitude": random.uniform(-180, 180),
        "radius_m": 10 ** random.uniform(4, 7.4),
    }


def a_filter(random: Random, levels: int = 3) -> dict[str, Any]:
    """A filter of conditions, circles and filters; most have few of them."""
    attributes = random.sample(ATTRIBUTES, random.choice([0, 0, 1, 1, 2, 3]))
    drawn: dict[str, Any] = {name: a_condition(random, name) for name in attributes}
    if random.random() < 0.1:
        drawn["near"] = [a_circle(random) for _ in range(random.randint(1, 3))]
    for group in ("all", "any", "none"):
        if levels > 1 and random.random() < 0.25:
            drawn[group] = [a_filter(random, levels - 1) for _ in range(random.randint(1, 3))]
    return drawn


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


def test_filters_match_their_truth_table(
    served: tuple[SmallBundle, Clients], request: pytest.FixtureRequest
) -> None:
    small, clients = served
    values = [reference.attributes(small, row) for row in range(SIZE)]
    counts = set[int]()
    for seed in seeds(request, 200, first=20_000):  # each over HTTP as JSON and over gRPC
        random = Random(seed)
        wanted = a_filter(random)
        query = np.array([random.gauss(0, 1) for _ in range(small.vectors.shape[1])], np.float32)
        k = random.choice([1, 3, SIZE, SIZE + 5])
        matching = [row for row in range(SIZE) if reference.matches(values[row], wanted)]
        best = sorted(matching, key=lambda row: (-float(small.vectors[row] @ query), row))[:k]
        expected = [int(small.ids[row]) for row in best]
        case = Case("retrieve", "filtered", {"k": k, "vectors": [query.tolist()], "filter": wanted})
        code, body = clients.by_http(case, protobuf=False)
        assert code == "OK", body
        assert json.loads(body)["ids"] == expected, (seed, wanted)
        code, body = clients.by_grpc(case)
        assert code == "OK", body
        actual = pb.RetrieveResponse.FromString(body).ids
        assert np.frombuffer(actual.int64s, "<i8").tolist() == expected, (seed, wanted)
        counts.add(len(matching))
    assert {0, 1, SIZE} <= counts


def a_selection(random: Random, small: SmallBundle) -> dict[str, Any]:
    """A filter beside other options that choose among the candidates."""
    ids = [*small.ids.tolist(), 5]
    body: dict[str, Any] = {"k": random.randint(1, 8)}
    if random.random() < 0.5:
        body["filter"] = a_filter(random, 2)
    if random.random() < 0.5:
        attributes = random.sample(["studio", "classic", "year"], random.randint(1, 3))
        body["crowding"] = {name: random.randint(1, 3) for name in attributes}
    if random.random() < 0.5:
        body["offset"] = random.randint(0, 12)
        body["pool_size"] = body["offset"] + body["k"] + random.randint(0, 20)
    for name in ("exclude_ids", "negative_ids"):
        if random.random() < 0.5:
            body[name] = random.sample(ids, random.randint(0, 4))
    return body


def test_lists_of_several_options_match_their_definition(
    served: tuple[SmallBundle, Clients], request: pytest.FixtureRequest
) -> None:
    small, clients = served
    lengths = set[int]()
    for seed in seeds(request, 200, first=21_000):
        random = Random(seed)
        query = np.array([random.gauss(0, 1) for _ in range(small.vectors.shape[1])], np.float32)
        body = {"vectors": [query.tolist()], **a_selection(random, small)}
        (response,) = reference.responses(small, "retrieve", body)
        expected = response["ids"]
        case = Case("retrieve", "selected", body)
        code, actual = clients.by_http(case, protobuf=False)
        assert code == "OK", actual
        assert json.loads(actual)["ids"] == expected, (seed, body)
        code, actual = clients.by_grpc(case)
        assert code == "OK", actual
        ids = pb.RetrieveResponse.FromString(actual).ids
        assert np.frombuffer(ids.int64s, "<i8").tolist() == expected, (seed, body)
        lengths.add(len(expected))
    assert {0, 1, 8} <= lengths
