"""Models and signatures as JSON and as messages."""

from __future__ import annotations

import json

import pytest

from service.engine import descriptions, requests
from service.errors import InvalidArgument
from service.generations.shelf import VersionState
from service.wire import signatures
from service.wire.json_bodies import dump
from service.wire.stubs import embedding_service_pb2 as pb

DETAILS = descriptions.ModelDetails(
    model="movies",
    version=7,
    created="2026-01-02T03:04:05Z",
    calls=(
        descriptions.CallSignature(
            "retrieve",
            "query",
            (
                descriptions.FeatureDetails(
                    "user", "single", "int64", "context", required=False, default=0, table="user"
                ),
                descriptions.FeatureDetails("photo", "dense", "float32", "context", required=True, shape=(2, 3)),
            ),
            ("vector",),
        ),
    ),
    tables=(descriptions.TableDetails("user", 10, 4, "float32", 160),),
    indexes=(descriptions.IndexDetails("main", "movies", "brute_force", "dot_product", 4, 9, 10, 1.0),),
    corpora=(descriptions.CorpusDetails("movies", 9, "int64", ("title",), ("movie",)),),
)


def test_details_say_the_same_in_both_forms() -> None:
    value = json.loads(dump(signatures.details_value(DETAILS)))
    message = signatures.details_message(DETAILS)
    assert (message.model.name, message.model.version) == (value["model"], value["version"])
    user, photo = message.calls[0].features
    told = value["calls"][0]["features"]
    assert (user.name, user.default_json, told[0]["default"]) == ("user", "0", 0)
    assert (list(photo.shape), photo.default_json, told[1]["shape"]) == ([2, 3], "", [2, 3])
    assert message.indexes[0].recall == value["indexes"][0]["recall"] == 1.0
    assert list(message.corpora[0].attributes) == value["corpora"][0]["attributes"] == ["title"]
    assert message.tables[0].rows == value["tables"][0]["rows"] == 10


def test_models_say_the_same_in_both_forms() -> None:
    states = [
        descriptions.ModelState(
            "m",
            (
                VersionState(2, "refused", "bad"),
                VersionState(1, "available", current=True, labels=("stable",), memory_bytes=9),
            ),
        )
    ]
    value = json.loads(dump(signatures.models_value(states)))
    message = signatures.models_message(states)
    assert value["models"][0]["versions"][0] == {
        "version": 2,
        "state": "refused",
        "problem": "bad",
        "current": False,
        "labels": [],
        "memory_bytes": 0,
    }
    current = message.models[0].versions[1]
    assert (current.current, list(current.labels), current.memory_bytes) == (True, ["stable"], 9)
    assert [version.version for version in message.models[0].versions] == [2, 1]
    assert message.models[0].versions[0].problem == "bad"


def test_details_of_which_model_is_read_from_the_message() -> None:
    body = pb.GetModelRequest(model=pb.ModelSpec(name="m", version=3)).SerializeToString()
    assert signatures.read_details(body) == requests.Target("m", 3)
    for reader in (signatures.read_details, signatures.read_models):
        with pytest.raises(InvalidArgument):
            reader(b"\xff")
