"""Models, their versions and the signature of each call, as protobuf messages. As JSON they are the
engine's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.codec.stubs import embedding_service_pb2 as pb


def models_value(models: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the list of models as a value that `json.dump` writes.

    Args:
      models: the VersionState of each version, by model.
    """
    return {"models": [{"name": name, "versions": versions} for name, versions in models.items()]}


def models_message(models: Mapping[str, Sequence[Any]]) -> pb.ListModelsResponse:
    """Returns the list of models, as of `models_value`, as its message."""
    return pb.ListModelsResponse(
        models=[
            pb.ModelState(
                name=name, versions=[pb.VersionState(**vars(version)) for version in versions]
            )
            for name, versions in models.items()
        ]
    )


def details_message(details: Mapping[str, Any]) -> pb.ModelDetails:
    """Returns the details of a version as their message.

    Args:
      details: the JSON value of `GET /v1/models/{model}`. What has no one type travels as JSON in a
        field `*_json`.
    """
    values: dict[str, Any] = {
        **details,
        "model": {"name": details["model"], "version": details["version"]},
    }
    del values["version"]
    values["calls"] = [
        {**call, "features": [_with_json(feature, "default") for feature in call["features"]]}
        for call in details["calls"]
    ]
    values["readers"] = [
        _with_json(reader, "ids", "padding", "cast") for reader in details["readers"]
    ]
    return pb.ModelDetails(**values)


def _with_json(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Returns values with some of them as JSON, under their names with `_json` appended; null
    becomes empty.
    """
    texts = {
        f"{name}_json": orjson.dumps(values[name]).decode()
        for name in names
        if values.get(name) is not None
    }
    return {name: value for name, value in values.items() if name not in names} | texts
