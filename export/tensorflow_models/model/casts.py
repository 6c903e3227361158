"""Casts in a graph of layers that the layers make themselves.

A layer casts numbers to the dtype in which it computes. Keras 3.4 to 3.7 wrote that as an operation
of the graph in front of the layer; earlier and later releases write none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What layers cast. Integers are left as they are."""


def without_casts(graph: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration of a graph of layers without the casts that its layers make."""
    sources = {}
    for layer in graph["layers"]:
        tensor = _cast_tensor(layer)
        if tensor is not None:
            takers = list(_takers(graph["layers"], layer["name"]))
            dtype = layer["config"].get("dtype")
            if takers and all(_dtype_of(taker) == dtype for taker in takers):
                sources[layer["name"]] = tensor
    if not sources:
        return graph
    layers = [
        {**layer, "inbound_nodes": _replaced(layer.get("inbound_nodes"), sources)}
        for layer in graph["layers"]
        if layer.get("name") not in sources
    ]
    return {**graph, "layers": layers}


def _cast_tensor(layer: Mapping[str, Any]) -> Any:
    """Returns the tensor that a cast of numbers is called on; None: the layer is no such cast."""
    if layer.get("class_name") != "Cast":
        return None
    try:
        (node,) = layer["inbound_nodes"]
        (tensor,) = node["args"]
        is_number = tensor["config"]["dtype"] in _FLOATS
    except (KeyError, TypeError, ValueError):
        return None
    if not is_number:
        return None
    return tensor


def _takers(layers: list[Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Yields the layers that are called on the outputs of a layer."""
    for layer in layers:
        if any(history[0] == name for history in _histories(layer.get("inbound_nodes"))):
            yield layer


def _histories(value: Any) -> Iterator[list[Any]]:
    """Yields (name, call, output) of each tensor in the calls of a layer."""
    if isinstance(value, dict):
        history = value.get("keras_history")
        if isinstance(history, list) and history:
            yield history
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _histories(inner)


def _dtype_of(layer: Mapping[str, Any]) -> str:
    """Returns the dtype in which a layer computes; "" if it does not say it."""
    policy = layer["config"].get("dtype")
    if isinstance(policy, dict):
        policy = policy.get("config", {}).get("name")
    return str(policy or "").removeprefix("mixed_")


def _replaced(value: Any, sources: Mapping[str, Any]) -> Any:
    """Returns calls of a layer on what casts are called on, in place of the casts."""
    if isinstance(value, list):
        return [_replaced(inner, sources) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") == "__keras_tensor__":
        for name, *_ in _histories(value):
            if name in sources:
                return _replaced(sources[name], sources)
    return {key: _replaced(inner, sources) for key, inner in value.items()}
