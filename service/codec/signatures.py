"""Models, their versions and the signature of each call, as protobuf messages. As JSON they are the
engine's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.value_messages import fill


def models_value(models: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the list of models as a value that `json.dump` writes.

    Args:
      models: The VersionState of each version, by model.
    """
    return {"models": [{"name": name, "versions": versions} for name, versions in models.items()]}


def models_message(models: Mapping[str, Sequence[Any]]) -> pb.ListModelsResponse:
    """Returns the list of models, as of `models_value`, as its message."""
    response = pb.ListModelsResponse()
    for name, versions in models.items():
        model = response.models.add(name=name)
        for version in versions:
            fill(model.versions.add(), vars(version))
    return response


def details_message(details: Mapping[str, Any]) -> pb.GetModelResponse:
    """Returns the details of a version as their message.

    Args:
      details: The JSON value of `GET /v1/models/{model}`.
    """
    # JSON has name and version side by side; the contract has them in a ModelSpec.
    values = {name: value for name, value in details.items() if name != "version"}
    values["model"] = {"name": details["model"], "version": details["version"]}
    response = pb.GetModelResponse()
    fill(response, values)
    return response
