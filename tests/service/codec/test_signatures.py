"""Models and their signatures as JSON and as messages."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from service.codec import signatures
from service.codec.json import dump
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
            "ids": {"kind": "hash", "buckets": 4},
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
    assert (message.created, message.current, list(message.labels)) == (
        value["created"],
        True,
        ["stable"],
    )
    assert list(message.corpora[0].features) == value["corpora"][0]["features"]
    assert message.tables[0].rows == value["tables"][0]["rows"]
    assert list(message.towers[0].inputs[0].shape) == value["towers"][0]["inputs"][0]["shape"]
    form = message.towers[0].forms[0]
    assert (dict(form.max_abs_error), form.effects["ids"].HasField("auc")) == ({"ids": 0.25}, False)


def test_details_message_writes_values_of_any_type_as_json() -> None:
    message = signatures.details_message(DETAILS)
    user, photo = message.calls[0].features
    assert (user.default_json, photo.default_json, list(photo.shape)) == ("0", "", [2, 3])
    first, second = message.readers
    assert (json.loads(first.ids_json), first.padding_json) == (
        {"kind": "hash", "buckets": 4},
        '""',
    )
    assert (second.ids_json, second.padding_json, second.cast_json) == ("", "", "")


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
    for found, written, version in zip(
        message.versions, value["versions"], MODELS["m"], strict=True
    ):
        assert written == asdict(version) | {"labels": list(version.labels)}
        assert {name: getattr(found, name) for name in written} == written
