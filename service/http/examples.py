"""Example bodies of the document, made from the signature of a loaded model; nothing is computed for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.engine.engine import Engine
from service.engine.requests import Target
from service.errors import ServiceError

Value = dict[str, Any]
_SAMPLES: dict[str, Any] = {"string": "a", "float32": 0.5}
_CANDIDATES = [1, 2, 3]


def example_bodies(engine: Engine) -> Value:
    """Returns a body for each call of the first available model; none while there is none."""
    for state in engine.models():
        try:
            return dict(_bodies(engine.model(Target(state.name))))
        except ServiceError:
            continue
    return {}


def _bodies(details: Value) -> Iterator[tuple[str, Value]]:
    stores = details["corpora"]
    query = {"k": 3, "attributes": stores[0]["attributes"][:1] if stores else []}
    for signature in reversed(details["calls"]):  # of several towers the first
        call, context, candidate = signature["call"], _values(signature, "context"), _values(signature, "candidate")
        if call in {"retrieve", "recommend"}:
            yield call, {"features": context, **query}
        elif call == "rank":
            repeated = {name: [value] * len(_CANDIDATES) for name, value in candidate.items()}
            yield call, {"context": context, "candidates": _CANDIDATES} | ({"features": repeated} if repeated else {})
        elif call == "embed":
            yield call, {"tower": signature["tower"], "features": context | candidate}
        for feature in signature["features"]:
            if feature["table"]:
                yield "lookup", {"feature": feature["name"], "ids": [_SAMPLES.get(feature["type"], 1)]}


def _values(signature: Value, role: str) -> Value:
    """Returns values of the features of a role that clients send."""
    return {
        feature["name"]: _value(feature)
        for feature in signature["features"]
        if feature["role"] == role and not (feature["stored"] and role == "candidate")
    }


def _value(feature: Value) -> Any:
    """Returns a value that a feature accepts: its default, or one by type and shape."""
    if feature["default"] not in (None, []):
        return feature["default"]
    sample = _SAMPLES.get(feature["type"], 1)
    for length in [2] if feature["kind"] in {"bag", "sequence"} else reversed(feature["shape"]):
        sample = [sample] * length
    return sample
