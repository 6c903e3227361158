"""Models, their versions and the signature of each call, as JSON values and as protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from service.engine import requests
from service.wire.messages import parse, target_of
from service.wire.stubs import embedding_service_pb2 as pb


def models_value(models: Sequence[requests.ModelState]) -> dict[str, Any]:
    """Returns the list of models as a JSON value."""
    return {"models": [asdict(model) for model in models]}


def models_message(models: Sequence[requests.ModelState]) -> pb.ListModelsResponse:
    """Returns the list of models as its message."""
    return pb.ListModelsResponse(
        models=[
            pb.ModelState(name=model.name, versions=[pb.VersionState(**asdict(version)) for version in model.versions])
            for model in models
        ]
    )


def details_value(details: requests.ModelDetails) -> dict[str, Any]:
    """Returns a version's details as a JSON value."""
    return asdict(details)


def details_message(details: requests.ModelDetails) -> pb.ModelDetails:
    """Returns a version's details as their message; defaults travel as JSON, since they have no one type."""
    return pb.ModelDetails(
        model=pb.ModelSpec(name=details.model, version=details.version),
        created=details.created,
        calls=[
            pb.CallSignature(
                call=call.call,
                tower=call.tower,
                features=[_feature_message(feature) for feature in call.features],
                outputs=call.outputs,
            )
            for call in details.calls
        ],
        tables=[pb.TableDetails(**asdict(table)) for table in details.tables],
        indexes=[pb.IndexDetails(**asdict(index)) for index in details.indexes],
        corpora=[pb.CorpusDetails(**asdict(corpus)) for corpus in details.corpora],
    )


def read_details(body: bytes) -> requests.Target:
    """Reads a GetModelRequest: which version's details are wanted.

    Raises:
      InvalidArgument: the bytes are no such message.
    """
    return target_of(parse(pb.GetModelRequest, body).model, None)


def read_models(body: bytes) -> None:
    """Reads a ListModelsRequest, which says nothing.

    Raises:
      InvalidArgument: the bytes are no such message.
    """
    parse(pb.ListModelsRequest, body)


def _feature_message(feature: requests.FeatureDetails) -> pb.FeatureDetails:
    told = asdict(feature)
    default = told.pop("default")
    return pb.FeatureDetails(**told, default_json="" if default is None else orjson.dumps(default).decode())
