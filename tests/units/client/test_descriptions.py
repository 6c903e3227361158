"""What a service reports about its models, and results as people read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from rowcast_client import Client, ModelState, Neighbor, Neighbors, RetrievalResult, model_details
from rowcast_client.descriptions import record_of, text_of
from rowcast_client.stubs import embedding_service_pb2 as pb

from tests.cases.random_requests import written
from tests.cases.ways import Ways, serving
from tests.units.client.plain import plain

WORDS = [
    (model_details.CallSignature, "call", pb.Call),
    (model_details.FeatureDetails, "kind", pb.FeatureKind),
    (model_details.FeatureDetails, "type", pb.DataType),
    (model_details.FeatureDetails, "role", pb.Role),
    (model_details.FeatureDetails, "combiner", pb.Combiner),
    (model_details.InputLength, "pad_side", pb.PadSide),
    (model_details.InputLength, "keep", pb.Keep),
    (model_details.ReaderDetails, "encoding", pb.BagEncoding),
    (model_details.ReaderDetails, "take", pb.Take),
    (model_details.TowerDetails, "role", pb.TowerRole),
    (model_details.TowerDetails, "device", pb.Device),
    (model_details.FormDetails, "kind", pb.FormKind),
    (model_details.FormDetails, "precision", pb.Precision),
    (model_details.IndexDetails, "kind", pb.IndexKind),
    (model_details.IndexDetails, "distance", pb.Distance),
    (model_details.VersionState, "state", pb.LoadState),
]
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
    readers = {reader.name: reader for reader in details.readers}
    ids = readers["city"].ids or {}
    assert ids["expression"] == "fingerprint64(city) mod 16"


@pytest.mark.parametrize(("record", "name", "enum"), WORDS)
def test_type_of_a_field_has_all_words_of_the_contract(
    record: type[Any], name: str, enum: Any
) -> None:
    words = set(get_args(get_type_hints(record)[name])) - {""}
    assert words == {text_of(enum.DESCRIPTOR, number) for number in enum.values()} - {""}


def test_value_of_a_newer_service_is_its_number() -> None:
    message = pb.ModelState(name="m", versions=[pb.VersionState(version=1, state=99)])  # type: ignore[arg-type]
    state = record_of(message)
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
