"""What a service reports about its models: the words of its JSON, also of a newer service."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from rowcast_client import ModelState, calls, model_details
from rowcast_client.descriptions import record_of, text_of
from rowcast_client.stubs import embedding_service_pb2 as pb

from tests.units.client.conftest import RunningService
from tests.units.client.test_client_service import same_by_all_ways

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


def test_models_and_model_have_the_words_of_the_json_by_all_ways(service: RunningService) -> None:
    details = same_by_all_ways(service, calls.model("movies"))
    assert dataclasses.asdict(details) == get(service, "/v1/models/movies")
    (index,) = details.indexes
    assert (index.kind, index.distance) == ("brute_force", "dot_product")
    assert {form.kind for form in details.towers[0].forms} == {"saved_model", "litert"}
    states = same_by_all_ways(service, calls.models())
    assert [dataclasses.asdict(state) for state in states] == get(service, "/v1/models")["models"]


def get(service: RunningService, path: str) -> Any:
    return httpx.get(service.http + path).json()


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
