"""Compares the layers that a SavedModel of tf-keras, or a whole model in Keras' older HDF5 format,
describes with those of the factory's model.

The vocabulary of a layer that was adapted is no part of its description: it is a constant of the
SavedModel's graph, which is neither run nor read; HDF5 does not hold it. A note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.keras_saving import older_configuration_of
from export.tensorflow_models.frameworks.trackables import children_of, descendants_of
from export.tensorflow_models.model.configurations import (
    MISSING,
    Comparison,
    compare_configurations,
    default_of,
    text_of,
)
from export.tensorflow_models.model.ordered_variables import find_ordered_variables

_REMEDY = "Let the factory build the layer as it was trained. If the factory is right, save "
_CHECKPOINT = "the model with tf.train.Checkpoint(model=model).write(path)"
_WEIGHTS = 'its weights alone with model.save_weights("model.weights.h5")'


def check_saved_layers(root: Any, checkpoint: Checkpoint, object_path: str) -> tuple[str, ...]:
    """Compares the layers that a file describes with those of the model that the factory returned.

    Args:
      root: The model.
      checkpoint: Any checkpoint.
      object_path: The path of the model in what was saved; "": it was saved itself.

    Returns:
      Notes on what is not compared.

    Raises:
      CheckpointError: A layer differs; names it, and the first difference.
    """
    described = checkpoint.storage.layers
    if described and checkpoint.storage.ordered_layers:
        # The factory may return an object that has the saved model among its attributes.
        root = find_ordered_variables(root, checkpoint).model
    if not described or not hasattr(root, "_trackable_children"):
        return ()
    parts = descendants_of(root)
    classes = [type(part) for part in parts]
    vocabularies: dict[str, list[Any] | None] = {}
    lambdas: dict[str, None] = {}
    # The outermost first: a graph of layers describes its layers, too.
    for path, saved in sorted(_within(described, object_path), key=lambda pair: len(pair[0])):
        layer = _object_at(root, path)
        if layer is None:
            continue
        built = _configuration_of(layer, saved, checkpoint)
        if built is None:
            continue
        comparison = compare_configurations(
            saved, built, lambda kind, argument: default_of(classes, kind, argument)
        )
        label = "the model"
        if path:
            label = _label(layer)
        _check(checkpoint, label, comparison)
        # A model that is a graph has vocabularies that were arguments, its layers have none.
        vocabularies = comparison.vocabularies | vocabularies
        lambdas |= dict.fromkeys(comparison.lambdas)

    layers = {part.name: part for part in parts if hasattr(type(part), "get_vocabulary")}
    notes = [
        note
        for name, vocabulary in vocabularies.items()
        if (note := _compare_vocabulary(checkpoint, layers.get(name), vocabulary))
    ]
    notes += [
        f"{label}: the code of a lambda is the factory's; the saved one is not compared"
        for label in lambdas
    ]
    return tuple(notes)


def _within(
    described: Mapping[str, Mapping[str, Any]], object_path: str
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yields the layers of an object, by their paths from it."""
    steps = tuple(step for step in object_path.replace("/", ".").split(".") if step)
    for path, saved in described.items():
        layer_steps = tuple(step for step in path.split(".") if step)
        if layer_steps[: len(steps)] == steps:
            yield layer_steps[len(steps) :], saved


def _object_at(root: Any, path: tuple[str, ...]) -> Any:
    """Returns the object at a path of attributes; None if there is none."""
    current = root
    for step in path:
        current = children_of(current).get(step)
        if current is None:
            return None
    return current


def _configuration_of(
    layer: Any, saved: Mapping[str, Any], checkpoint: Checkpoint
) -> dict[str, Any] | None:
    """Returns a layer's class and arguments, after a way through JSON; None if it does not say, or
    if it and the saved one are of different classes of the user's.

    A class that derives from the saved one, as to add methods for the export, passes for it.
    """
    if not hasattr(layer, "get_config"):
        return None
    built_class = type(layer).__name__
    saved_class = str(saved["class_name"])
    if saved_class in {kind.__name__ for kind in type(layer).__mro__}:
        built_class = saved_class
    elif not _is_of_keras(built_class) and not _is_of_keras(saved_class):
        return None
    try:
        if checkpoint.storage.ordered_layers:
            return older_configuration_of(layer) | {"class_name": built_class}
        text = json.dumps(layer.get_config(), default=_plain)
    except Exception:  # noqa: BLE001 - a class of the user's may raise anything
        return None
    return {"class_name": built_class, "config": json.loads(text)}


def _is_of_keras(class_name: str) -> bool:
    return any(hasattr(module, class_name) for module in (tf.keras, tf.keras.layers))


def _plain(value: Any) -> Any:
    """Returns what JSON has for an argument."""
    if isinstance(value, tf.TensorShape):
        if value.rank is None:
            return None
        return value.as_list()
    if isinstance(value, tf.DType):
        return value.name
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "get_config"):
        return {"class_name": type(value).__name__, "config": value.get_config()}
    return getattr(value, "__name__", repr(value))


def _check(checkpoint: Checkpoint, label: str, comparison: Comparison) -> None:
    if not comparison.differences:
        return
    # A graph of layers names the layer in it.
    difference = comparison.differences[0].replace("the model: ", f"{label}: ", 1)
    raise CheckpointError(f"checkpoint {checkpoint.prefix}: {difference}. {_remedy(checkpoint)}")


def _compare_vocabulary(checkpoint: Checkpoint, layer: Any, vocabulary: list[Any] | None) -> str:
    """Compares the vocabulary of a layer; returns a note if it cannot be, else "".

    Raises:
      CheckpointError: It was an argument, and is another in the model.
    """
    if layer is None:
        return ""
    if not isinstance(vocabulary, list):
        status = f"in SavedModel {checkpoint.prefix.parent.parent} is a part of the graph, not read"
        if checkpoint.storage.ordered_layers:
            status = f"is not in checkpoint {checkpoint.name}"
        return (
            f"{_label(layer)}: its vocabulary {status}; only recorded outputs (verify.expected) "
            "can show whether it is the factory's"
        )
    stored = [str(token) for token in vocabulary]
    # An argument may hold the special tokens, or only what follows them.
    plain = [str(token) for token in layer.get_vocabulary(include_special_tokens=False)]
    whole = [str(token) for token in layer.get_vocabulary()]
    if stored not in (plain, whole):
        _reject_vocabulary(checkpoint, layer, stored, plain)
    return ""


def _reject_vocabulary(
    checkpoint: Checkpoint, layer: Any, stored: list[str], expected: list[str]
) -> None:
    """Raises the error about the first entry in which two vocabularies differ."""
    pairs = zip_longest(stored, expected, fillvalue=MISSING)
    for index, (saved, built) in enumerate(pairs):
        if saved != built:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix}: {_label(layer)}: vocabulary entry {index} is "
                f"{_token_text(saved)} in the file and {_token_text(built)} in the model. "
                f"{_remedy(checkpoint)}"
            )


def _token_text(token: Any) -> str:
    if token is MISSING:
        return "nothing"
    return text_of(token)


def _remedy(checkpoint: Checkpoint) -> str:
    """Returns what to do about a layer that differs."""
    if checkpoint.storage.ordered_layers:
        return f"{_REMEDY}{_WEIGHTS}, which says nothing of layers"
    return f"{_REMEDY}{_CHECKPOINT}, which says nothing of layers"


def _label(layer: Any) -> str:
    return f"layer {layer.name!r} ({type(layer).__name__})"
