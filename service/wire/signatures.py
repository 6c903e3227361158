"""Models, their versions and the signature of each call, as JSON values and as protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from service.engine import descriptions, requests
from service.wire.messages import parse, target_of
from service.wire.stubs import embedding_service_pb2 as pb


def models_value(models: Sequence[descriptions.ModelState]) -> dict[str, Any]:
    """Returns the list of models as a JSON value."""
    return {"models": models}


def models_message(models: Sequence[descriptions.ModelState]) -> pb.ListModelsResponse:
    """Returns the list of models as its message."""
    return pb.ListModelsResponse(
        models=[
            pb.ModelState(name=model.name, versions=[pb.VersionState(**vars(version)) for version in model.versions])
            for model in models
        ]
    )


def details_value(details: descriptions.ModelDetails) -> descriptions.ModelDetails:
    """Returns a version's details as what `json_bodies.dump` takes: themselves; thousands of values are not copied."""
    return details


def details_message(details: descriptions.ModelDetails) -> pb.ModelDetails:
    """Returns a version's details as their message; defaults travel as JSON, since they have no one type."""
    return pb.ModelDetails(
        model=pb.ModelSpec(name=details.model, version=details.version),
        created=details.created,
        calls=[
            pb.CallSignature(
                call=call.call,
                tower=call.tower,
                features=[_with_json(pb.FeatureDetails, feature, "default") for feature in call.features],
                outputs=call.outputs,
            )
            for call in details.calls
        ],
        tables=[pb.TableDetails(**vars(table)) for table in details.tables],
        indexes=[pb.IndexDetails(**vars(index)) for index in details.indexes],
        corpora=[pb.CorpusDetails(**vars(corpus)) for corpus in details.corpora],
        contexts=[pb.CorpusDetails(**vars(store)) for store in details.contexts],
        readers=[_with_json(pb.ReaderDetails, reader, "ids", "padding", "cast") for reader in details.readers],
        towers=[_tower_message(tower) for tower in details.towers],
        current=details.current,
        labels=details.labels,
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


def _with_json(kind: Any, told: Any, *names: str) -> Any:
    """Returns a message with some fields as JSON, under their names with `_json` behind them; None: empty."""
    values = dict(vars(told))
    for name in names:
        value = values.pop(name)
        values[f"{name}_json"] = "" if value is None else orjson.dumps(value).decode()
    return kind(**values)


def _tower_message(tower: descriptions.TowerDetails) -> pb.TowerDetails:
    return pb.TowerDetails(
        name=tower.name,
        role=tower.role,
        result=tower.result,
        formula=tower.formula,
        device=tower.device,
        **_network(tower),
        parts=[pb.PartDetails(name=part.name, per=part.per, **_network(part)) for part in tower.parts],
    )


def _network(told: descriptions.TowerDetails | descriptions.PartDetails) -> dict[str, Any]:
    return {
        "inputs": _tensors(told.inputs),
        "outputs": _tensors(told.outputs),
        "forms": [
            pb.FormDetails(
                kind=form.kind,
                precision=form.precision,
                max_abs_error=form.max_abs_error,
                effects={name: pb.EffectDetails(**asdict(effect)) for name, effect in form.effects.items()},
                runs=form.runs,
            )
            for form in told.forms
        ],
    }


def _tensors(told: Iterable[descriptions.TensorDetails]) -> list[pb.TensorDetails]:
    return [pb.TensorDetails(**vars(tensor)) for tensor in told]
