"""Models and their signatures as JSON and as messages."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from rowcast_client.descriptions import plain_message, text_of

from bundle.format.ids import TextIds
from service.codec import signatures
from service.codec.json import dump
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.value_messages import enum_number
from service.versions.lifecycle import VersionState

FORM = {
    "kind": "litert",
    "max_abs_error": {"ids": 0.25},
    "effects": {"ids": {"k": 10, "auc": None}},
    "runs": True,
}
PHOTO = {"name": "photo", "kind": "dense", "required": True, "default": None, "shape": (2, 3)}
DETAILS: dict[str, Any] = {
    "model": "movies",
    "version": 7,
    "created": "2026-01-02T03:04:05Z",
    "calls": [
        {
            "call": "embed",
            "features": [{"name": "user", "default": 0, "shape": ()}, PHOTO],
            "outputs": ("x",),
        }
    ],
    "tables": [{"name": "user", "rows": 10, "dim": 4, "dtype": "float32", "bytes": 160}],
    "corpora": [
        {"name": "movies", "size": 9, "attributes": ("title",), "features": ["movie", "default"]}
    ],
    "readers": [
        {
            "name": "user",
            "inputs": ["user"],
            "ids": {"kind": "keyed", "keys": "k"},
            "place": 0,
            "padding": "",
        },
        {
            "name": "photo",
            "inputs": ["photo"],
            "ids": None,
            "place": None,
            "padding": None,
            "below": 7,
        },
    ],
    "towers": [
        {
            "name": "query",
            "inputs": [{"name": "x", "shape": (-1, 4), "tensor": ""}],
            "forms": [FORM],
        }
    ],
    "current": True,
    "labels": ("stable",),
}


def test_details_message_has_the_fields_of_the_json_value() -> None:
    message = signatures.details_message(DETAILS)
    value = json.loads(dump(DETAILS))
    assert (message.model.name, message.model.version) == (value["model"], value["version"])
    assert (message.created.ToJsonString(), message.current, list(message.labels)) == (
        value["created"],
        True,
        ["stable"],
    )
    assert list(message.corpora[0].features) == value["corpora"][0]["features"]
    assert message.tables[0].rows == value["tables"][0]["rows"]
    assert list(message.towers[0].inputs[0].shape) == value["towers"][0]["inputs"][0]["shape"]
    form = message.towers[0].forms[0]
    assert (dict(form.max_abs_error), form.effects["ids"].HasField("auc")) == ({"ids": 0.25}, False)


def test_details_message_has_a_type_for_each_value() -> None:
    message = signatures.details_message(DETAILS)
    user, photo = message.calls[0].features
    assert np.frombuffer(user.default.int64s, "<i8").tolist() == [0]
    assert (photo.HasField("default"), list(photo.shape)) == (False, [2, 3])
    assert photo.kind == pb.FEATURE_KIND_DENSE
    first, second = message.readers
    assert (first.ids.WhichOneof("kind"), first.ids.keyed.keys) == ("keyed", "k")
    assert first.padding.WhichOneof("kind") == "string"
    assert [second.HasField(name) for name in ("ids", "padding")] == [False] * 2


LARGE = (1 << 62) - 1
GRAPH = {"dtypes": ["int64_or_string"], "expression": "fingerprint64(x) mod 7"}
KEYS = [
    {"dtype": "string", "role": "candidate", "default": ["a", "b"]},
    {"dtype": "float32", "role": "context", "default": 0.5, "ids": GRAPH},
    {"dtype": "int64", "role": "context", "default": {"ids": [7], "weights": [0.5]}, "padding": -1},
]
RULES: list[dict[str, Any]] = [
    {"kind": "identity"},
    {"kind": "graph", **GRAPH},
    {"kind": "crossed", "keys": KEYS, "buckets": 10, "hash_key": LARGE},
    {
        "kind": "joined",
        "keys": KEYS[:1],
        "ids": {"dtypes": ["string", "int32"], "expression": "len(x + str(y))"},
    },
    {"kind": "text", "split": "whitespace", "ngrams": [1, 2], "length": 3, "ids": GRAPH},
    {
        "kind": "text",
        "split": "separator",
        "separator": "|",
        "ngrams": [],
        "length": 3,
        "padding": "",
        "ids": GRAPH,
    },
    {"kind": "text", "text": GRAPH, "split": "characters", "ngrams": [], "ids": GRAPH},
    {"kind": "keyed", "keys": "k"},
]


@pytest.mark.parametrize("rule", RULES, ids=[rule["kind"] for rule in RULES])
def test_every_rule_reaches_the_client_as_it_is_described(rule: dict[str, Any]) -> None:
    reader = {"name": "r", "inputs": ["r"], "ids": rule}
    message = signatures.details_message({"model": "m", "version": 1, "readers": [reader]})
    received = pb.GetModelResponse.FromString(message.SerializeToString())
    assert plain_message(received.readers[0])["ids"] == rule


def test_every_split_of_texts_is_a_value_of_its_enum() -> None:
    values = TextIds.model_json_schema()["properties"]["split"]["enum"]
    numbers = [enum_number(pb.TextSplit.DESCRIPTOR, value) for value in values]
    assert sorted(numbers) == sorted(pb.TextSplit.values())[1:]
    assert [text_of(pb.TextSplit.DESCRIPTOR, number) for number in numbers] == values


def test_details_message_keeps_zero_apart_from_null() -> None:
    first, second = signatures.details_message(DETAILS).readers
    assert (first.HasField("place"), first.place, second.HasField("place")) == (True, 0, False)
    assert (first.HasField("below"), second.below) == (False, 7)


MODELS = {
    "m": (VersionState(2, "failed", "bad"), VersionState(1, "available", "", True, ("stable",), 9))
}


def test_models_have_the_same_fields_in_both_forms() -> None:
    value = json.loads(dump(signatures.models_value(MODELS)))["models"][0]
    message = signatures.models_message(MODELS).models[0]
    assert message.name == value["name"] == "m"
    for sent_version, written, version in zip(
        message.versions, value["versions"], MODELS["m"], strict=True
    ):
        assert written == asdict(version) | {"labels": list(version.labels)}
        assert plain_message(sent_version) == written
