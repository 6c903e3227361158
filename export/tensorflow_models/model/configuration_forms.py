"""The forms in which releases of Keras write the same configuration, and what a configuration says
of an object whatever its form: its class, its name, the layers that it lists.

Source: Keras 3.15, src/saving/serialization_lib.py, src/models/functional.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LOOKUPS = ("StringLookup", "IntegerLookup", "TextVectorization")
"""Layers with vocabularies."""
_OF_VOCABULARIES = ("vocabulary", "idf_weights", "vocabulary_size", "has_input_vocabulary")
_MASKS = ("query_mask", "value_mask", "key_mask")
"""Arguments of layers of attention that follow from what the layers are called on."""


def is_object(value: Any) -> bool:
    """Returns whether a value describes an object: a layer, an initializer, a function."""
    return isinstance(value, dict) and "class_name" in value and "config" in value


def lists_layers(config: Mapping[str, Any]) -> bool:
    """Returns whether a configuration is that of a graph of layers."""
    layers = config.get("layers")
    return isinstance(layers, list) and all(map(is_object, layers))


def class_name_of(saved: Mapping[str, Any]) -> str:
    """Returns the name of an object's class; a registered one is `package>Class` in HDF5."""
    return str(saved.get("class_name", "")).rpartition(">")[2]


def is_of_keras(saved: Mapping[str, Any]) -> bool:
    """Returns whether a class or function is one of Keras, whose arguments are known."""
    module = str(saved.get("module") or "keras")
    return module.partition(".")[0] in ("keras", "builtins", "tf_keras")


def qualified_class_of(saved: Mapping[str, Any]) -> str:
    """Returns the name of an object's class behind that of its module, if it is stated."""
    name = str(saved.get("class_name"))
    module = saved.get("module")
    if module:
        return f"{module}.{name}"
    return name


def name_of(layer: Mapping[str, Any]) -> str:
    """Returns the name of a layer, which a list has beside its configuration or in it."""
    config = layer.get("config")
    inner_name = None
    if isinstance(config, dict):
        inner_name = config.get("name")
    return str(layer.get("name") or inner_name)


def is_vocabulary(key: str, kind: str) -> bool:
    """Returns whether an argument of a class is its vocabulary, or a part of it."""
    return kind in LOOKUPS and key in _OF_VOCABULARIES


def normalized(value: Any) -> Any:
    """Returns a value in the shorter of two forms in which Keras writes the same."""
    if isinstance(value, dict) and value.get("class_name") in ("__tuple__", "TensorShape"):
        return value.get("items")
    if not is_object(value):
        return value
    config = value["config"]
    if value["class_name"] == "__keras_tensor__" and isinstance(config, dict):
        return config.get("keras_history")
    if str(value["class_name"]).endswith("Policy") and isinstance(config, dict):
        # One of a quantized layer has a mode and the dtype before.
        return config.get("name") or " of ".join(map(str, config.values()))
    if value["class_name"] == "function" and isinstance(config, str):
        return config
    return value


def lambda_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a layer of a function in Keras 2, in the form of Keras 3."""
    function = normalized(config.get("function"))
    if isinstance(function, list):
        parts = dict(zip(("code", "defaults", "closure"), function, strict=False))
        function = {"class_name": "__lambda__", "config": parts}
    return {"function": function, "arguments": config.get("arguments")}


def sizes_of_example(shape: Any) -> Any:
    """Returns a shape without the batch, whose size training chose."""
    shape = normalized(shape)
    if isinstance(shape, list):
        return shape[1:]
    return shape


def alone(tensors: Any) -> Any:
    """Returns the inputs or outputs of a graph; one that is alone in a list, without the list."""
    if isinstance(tensors, list) and len(tensors) == 1:
        return tensors[0]
    return tensors


def calls_of(nodes: Any) -> Any:
    """Returns the calls of a layer of Keras 3, without the arguments that say nothing: earlier
    releases wrote some that others leave out.
    """
    if not isinstance(nodes, list):
        return nodes
    return [_call(node) for node in nodes]


def _call(node: Any) -> Any:
    if not isinstance(node, dict) or not isinstance(node.get("kwargs"), dict):
        return node
    stated = {
        name: value
        for name, value in node["kwargs"].items()
        # An export calls layers for inference.
        if name != "training" and _is_stated(value)
    }
    return {**node, "kwargs": stated}


def _is_stated(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_stated, value))
    return value is not None


def layer_with_masks(layers: Iterable[Mapping[str, Any]]) -> str:
    """Returns the name of the first layer of a graph that is called with masks of what it attends
    to, such as `query_mask`; "" if none is.
    """
    for layer in layers:
        calls = calls_of(layer.get("inbound_nodes"))
        if isinstance(calls, list):
            arguments = [call.get("kwargs") or {} for call in calls if isinstance(call, dict)]
            if any(mask in stated for stated in arguments for mask in _MASKS):
                return name_of(layer)
    return ""
