"""Worked examples for the docs page: requests written from the signature of the loaded model, and its real answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from service.engine.descriptions import CallSignature, FeatureDetails, ModelDetails
from service.engine.engine import Engine
from service.engine.requests import Call, Target
from service.errors import ServiceError
from service.wire import json_bodies
from service.wire.failures import failure_of
from service.wire.operations import OPERATIONS

EXAMPLE_ID = "example"
_SAMPLES: dict[str, Any] = {"string": "a", "float32": 0.5}
_UNLOADED: dict[str, dict[str, Any]] = {
    "retrieve": {"k": 3, "features": {"user_id": 5, "history": [1, 2]}, "attributes": ["title"]},
    "rank": {"context": {"user_id": 5, "history": [1, 2]}, "candidates": [10, 20, 30]},
    "recommend": {"k": 3, "features": {"user_id": 5, "history": [1, 2]}, "attributes": ["title"]},
    "embed": {"tower": "query", "features": {"user_id": 5, "history": [1, 2]}},
    "lookup": {"feature": "user_id", "ids": [5, 6]},
}
"""Shown while no model is loaded."""


@dataclass(frozen=True)
class Example:
    """One call as JSON: the body and, where a model answered it, the answer.

    Attributes:
      status: HTTP status of the answer; 0: nobody was asked.
    """

    model: str
    body: dict[str, Any]
    answer: Any = None
    status: int = 0


async def worked_examples(engine: Engine) -> dict[str, Example]:
    """Returns one example for each call that the first available model takes; bodies alone while there is none."""
    for state in engine.models():
        try:
            details = engine.model(Target(state.name))
        except ServiceError:
            continue
        return {name: await _worked(engine, details, name, body) for name, body in (await _bodies(engine, details))}
    return {name: Example("MODEL", body) for name, body in _UNLOADED.items()}


def example_value(feature: FeatureDetails, known_ids: Mapping[str, list[Any]]) -> Any:
    """Returns a value that a feature takes: ids that its table has, its default, or one made up by type and shape.

    Args:
      feature: as its signature tells.
      known_ids: by table.
    """
    several = feature.kind in {"bag", "sequence"}
    if feature.table in known_ids:
        return known_ids[feature.table] if several else known_ids[feature.table][0]
    if feature.default not in (None, []):
        return feature.default
    sample = _SAMPLES.get(feature.type, 1)
    if several:
        return [sample, sample + 1 if isinstance(sample, int) else sample]
    for length in reversed(feature.shape):
        sample = [sample] * length
    return sample


async def _bodies(engine: Engine, details: ModelDetails) -> Iterable[tuple[str, dict[str, Any]]]:
    signatures: dict[str, CallSignature] = {}
    for signature in details.calls:
        signatures.setdefault(signature.call, signature)
    bodies = _written(details, signatures, {}, [1, 2, 3])
    found = await _worked(engine, details, "retrieve", bodies["retrieve"]) if "retrieve" in bodies else None
    if found is None or found.status != 200:
        return bodies.items()
    ids = [neighbor["id"] for neighbor in found.answer["neighbors"]]
    features = [feature for signature in details.calls for feature in signature.features]
    tables = {each.table: ids for each in features if each.stored and each.kind == "single" and each.table and ids}
    return _written(details, signatures, tables, ids).items()


def _written(
    details: ModelDetails, signatures: dict[str, CallSignature], known_ids: dict[str, list[Any]], candidates: list[Any]
) -> dict[str, dict[str, Any]]:
    """Writes a body for each call that the model takes."""
    bodies: dict[str, dict[str, Any]] = {}
    attributes = list(details.corpora[0].attributes[:1]) if details.corpora else []
    values = {name: _values(signature, known_ids) for name, signature in signatures.items()}
    if "retrieve" in signatures:
        bodies["retrieve"] = {"k": 3, "features": values["retrieve"]["context"], "attributes": attributes}
    if "rank" in signatures:
        bodies["rank"] = {"context": values["rank"]["context"], "candidates": candidates}
        if values["rank"]["candidate"]:
            repeated = {name: [value] * len(candidates) for name, value in values["rank"]["candidate"].items()}
            bodies["rank"]["features"] = repeated
    if "recommend" in signatures:
        bodies["recommend"] = {"k": 3, "features": values["recommend"]["context"], "attributes": attributes}
    if "embed" in signatures:
        features = values["embed"]["context"] | values["embed"]["candidate"]
        bodies["embed"] = {"tower": signatures["embed"].tower, "features": features}
    embedded = [feature for signature in details.calls for feature in signature.features if feature.table]
    if embedded:
        value = example_value(embedded[0], known_ids)
        bodies["lookup"] = {"feature": embedded[0].name, "ids": value if isinstance(value, list) else [value]}
    return bodies


def _values(signature: CallSignature, known_ids: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Returns values of the features that a caller sends, by role."""
    values: dict[str, dict[str, Any]] = {"context": {}, "candidate": {}}
    for feature in signature.features:
        if not (feature.stored and feature.role == "candidate"):
            values[feature.role][feature.name] = example_value(feature, known_ids)
    return values


async def _worked(engine: Engine, details: ModelDetails, name: str, body: dict[str, Any]) -> Example:
    operation = OPERATIONS[name]
    try:
        request, several = operation.read_json(body, Target(details.model, details.version))
        answer = await getattr(engine, name)(request, Call(EXAMPLE_ID))
    except ServiceError as problem:
        failure = failure_of(problem, EXAMPLE_ID)
        return Example(details.model, body, {"error": {"code": failure.code.value, "message": failure.message}})
    value = orjson.loads(json_bodies.dump(operation.write_json(answer, several)))
    return Example(details.model, body, value, 200)
