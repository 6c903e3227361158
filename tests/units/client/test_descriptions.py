"""What a service reports about its models, and results as people read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rowcast_client import Client, ModelState, Neighbor, Neighbors, RetrievalResult
from rowcast_client.model_details import RECORDS
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import value_of

from tests.cases.random_requests import written
from tests.cases.ways import Ways, serving
from tests.units.client.plain import plain

PACKED = Neighbors(
    np.array([5, 6, 7]), np.array([3, 2, 1], np.float32), {"title": ["a", None, "c"]}
)
RESULT = RetrievalResult("m", 1, PACKED, np.array([0, 2, 2, 3]), searched=9)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = written(tmp_path_factory.mktemp("bundles"), small_towers).directory.parents[1]
    with serving(root) as ways:
        yield ways


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_models_and_model_have_the_words_of_the_json(transport: str, ways: Ways) -> None:
    client: Client = ways.waiting[transport]
    details = client.model("movies")
    by_json = ways.clients.http.get("/v1/models/movies").json()
    assert plain(details) == by_json
    assert plain(client.model("movies", version=1)) == by_json
    listed = ways.clients.http.get("/v1/models").json()["models"]
    assert [dataclasses.asdict(state) for state in client.models()] == listed
    (ranking,) = [tower for tower in details.towers if tower.name == "ranking"]
    assert [part.name for part in ranking.parts] == ["context", "trunk", "score", "watch", "rating"]
    assert {form.kind for form in details.towers[0].forms} == {"litert", "saved_model"}


def test_value_of_a_newer_service_is_its_number() -> None:
    message = pb.ModelState(name="m", versions=[pb.VersionState(version=1, state=99)])  # type: ignore[arg-type]
    state = value_of(message, RECORDS)
    assert isinstance(state, ModelState)
    assert state.versions[0].state == "99"  # type: ignore[comparison-overlap]


def test_results_are_read_by_index_or_slice() -> None:
    assert [neighbors.ids.tolist() for neighbors in RESULT] == [[5, 6], [], [7]]
    assert RESULT[-1][0] == Neighbor(7, 1.0, {"title": "c"})
    assert [len(neighbors) for neighbors in RESULT[1:]] == [0, 1]
    first, second = RESULT[0]
    assert (second.id, second.attributes["title"], second.retrieval_score) == (6, None, None)
    assert (type(first.id), type(first.score)) == (int, float)
    assert [neighbor.id for neighbor in PACKED[1:]] == [6, 7]
    for values in (RESULT, PACKED):
        with pytest.raises(IndexError):
            values[3]
