"""Worked examples for the docs page: requests written from the signature of the loaded model, and its real answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from service.engine.engine import Engine
from service.engine.requests import Call, CallSignature, FeatureDetails, ModelDetails, Target
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


def example_value(feature: FeatureDetails) -> Any:
    """Returns a value that a feature takes: its default, or one made up by its kind, type and shape."""
    if feature.default is not None:
        return feature.default
    sample = _SAMPLES.get(feature.type, 1)
    if feature.kind in {"bag", "sequence"}:
        return [sample, sample + 1 if isinstance(sample, int) else sample]
    for length in reversed(feature.shape):
        sample = [sample] * length
    return sample


async def _bodies(engine: Engine, details: ModelDetails) -> Iterable[tuple[str, dict[str, Any]]]:
    bodies: dict[str, dict[str, Any]] = {}
    attributes = list(details.corpora[0].attributes[:1]) if details.corpora else []
    signatures: dict[str, CallSignature] = {}
    for signature in details.calls:
        signatures.setdefault(signature.call, signature)
    ids: list[Any] = [1, 2, 3]
    if "retrieve" in signatures:
        bodies["retrieve"] = {"k": 3, "features": _values(signatures["retrieve"], "context"), "attributes": attributes}
        found = await _worked(engine, details, "retrieve", bodies["retrieve"])
        if found.status == 200:
            ids = [neighbor["id"] for neighbor in found.answer["neighbors"]]
    if "rank" in signatures:
        bodies["rank"] = {"context": _values(signatures["rank"], "context"), "candidates": ids}
        extra = _values(signatures["rank"], "candidate")
        if extra:
            bodies["rank"]["features"] = {name: [value] * len(ids) for name, value in extra.items()}
    if "recommend" in signatures:
        features = _values(signatures["recommend"], "context")
        bodies["recommend"] = {"k": 3, "features": features, "attributes": attributes}
    if "embed" in signatures:
        signature = signatures["embed"]
        features = _values(signature, "context") | _values(signature, "candidate")
        bodies["embed"] = {"tower": signature.tower, "features": features}
    embedded = [feature for signature in details.calls for feature in signature.features if feature.table]
    if embedded:
        value = example_value(embedded[0])
        bodies["lookup"] = {"feature": embedded[0].name, "ids": value if isinstance(value, list) else [value]}
    return bodies.items()


def _values(signature: CallSignature, role: str) -> dict[str, Any]:
    return {
        feature.name: example_value(feature)
        for feature in signature.features
        if feature.role == role and not feature.stored
    }


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
