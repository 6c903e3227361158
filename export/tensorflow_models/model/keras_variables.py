"""Finds the variables of a model of Keras in what Keras saved, whichever framework it ran on.

    .weights.h5, .keras    by attributes: Keras walks the model as it does to save it
    .h5, the older format  by the order of layers and weights (`ordered_variables.py`)
    OrbaxCheckpoint        by `variable.path`, such as `two_tower/query/dense_1/kernel`
    lists in Orbax         by their positions (`listed_variables.py`)

Keras' own loaders are not used: they read every table, and the one of Orbax skips a variable whose
path it does not find, without an error. Paths hold names that Keras numbers in the order in which a
process makes layers, so they are taken only if they lead to one variable each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from export.checkpoint.formats.orbax import KERAS_ITEM, KERAS_TREES
from export.checkpoint.left_out import listed_shapes
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.graphs.internals import is_keras_3_layer
from export.graphs.placeholders import line_of_variable
from export.tensorflow_models.frameworks.keras_saving import (
    all_layers,
    is_keras_model,
    saved_values,
    tensorflow_variable,
    walk_of,
)
from export.tensorflow_models.frameworks.layer_names import is_automatic, without_number
from export.tensorflow_models.frameworks.trackables import handle_of
from export.tensorflow_models.model.listed_variables import find_listed_variables, holds_lists
from export.tensorflow_models.model.object_paths import VariableLocation
from export.tensorflow_models.model.ordered_variables import find_ordered_variables
from export.user_lines import at_line

_VALUES = KERAS_TREES[:2]
"""The trees that hold variables of layers."""
_WHOLE_MODEL = "model_weights/"
"""What holds the variables in a whole model in `.h5`."""


def saved_by_keras(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint is a file of Keras, or what its OrbaxCheckpoint saved."""
    if checkpoint.storage.kind == "Orbax":
        named = any(_path_of(key) for key in checkpoint.entries)
        return named or holds_lists(checkpoint)
    return checkpoint.storage.kind == "Keras"


def is_of_older_format(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint is in Keras' older format: weights or a whole model in `.h5`."""
    states_order = bool(checkpoint.storage.ordered_layers)
    return states_order or any(key.startswith(_WHOLE_MODEL) for key in checkpoint.entries)


@dataclass(frozen=True)
class KerasVariables:
    """The variables of a model beside what Keras saved of it.

    Attributes:
      locations: Each variable, as TensorFlow's, and its location; several ones if several layers
        share the variable and the file has it once for each.
      layers: The layers of the model by their paths in a file by attributes, also those that have
        made no variable yet; {} in other formats.
    """

    locations: Sequence[tuple[Any, VariableLocation]]
    layers: Mapping[str, Any] = field(default_factory=dict)


def find_keras_variables(root: Any, checkpoint: Checkpoint, object_path: str) -> KerasVariables:
    """Finds every variable of a model in what Keras saved.

    Args:
      root: The model that was saved.
      checkpoint: A file of Keras, or what OrbaxCheckpoint saved.
      object_path: The path of the model in what was saved: attributes in HDF5, names of layers in
        Orbax; "": it was saved itself, or is found by its names.

    Raises:
      CheckpointError: The factory returned no model of Keras, or another one than the file holds;
        or names are ambiguous.
    """
    of_keras_3 = is_keras_3_layer(root)
    if not of_keras_3 and (checkpoint.storage.kind == "Orbax" or not is_keras_model(root)):
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} was saved by Keras; the factory returned a "
            f"{type(root).__name__}: return the keras.Model that was saved, or an object or dict "
            "that has it beside the models of its parts"
        )
    if checkpoint.storage.ordered_layers:
        if object_path:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} holds a model itself, and no object "
                f"{object_path!r} (checkpoint.object_path): leave it out"
            )
        return KerasVariables(find_ordered_variables(root, checkpoint))
    # Before paths: lists are in Orbax, too, and their keys are numbers without names.
    if holds_lists(checkpoint):
        path = object_path.replace("/", ".")
        return KerasVariables(find_listed_variables(root, checkpoint, path))
    if checkpoint.storage.kind == "Orbax":
        path = object_path.replace("/", ".")
        return KerasVariables(list(_by_paths(root, checkpoint, path)))
    return _by_attributes(root, checkpoint, object_path.replace(".", "/"))


def has_lora_weights(root: Any, variable: Any) -> bool:
    """Returns whether a variable belongs to a layer with LoRA matrices in a model of Keras 3."""
    if not is_keras_3_layer(root):
        return False
    layers = [layer for layer in all_layers(root) if getattr(layer, "lora_enabled", False)]
    return any(variable is weight.value for layer in layers for weight in layer.weights)


def _by_attributes(root: Any, checkpoint: Checkpoint, object_path: str) -> KerasVariables:
    if is_of_older_format(checkpoint):
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} is in Keras's older format, and lacks the attribute "
            "layer_names, which states the order of its layers: without it, it gives only tables. "
            'Save the model with model.save("model.keras") or '
            'model.save_weights("model.weights.h5")'
        )
    walk = walk_of(root, object_path, checkpoint.entries)
    saved = saved_values(root, object_path, walk)
    _check_lists(saved.groups, checkpoint)
    locations = []
    for path, value in saved.values.items():
        # A layer may save what it computes, such as a kernel merged with its LoRA matrices.
        if handle_of(value) is None:
            continue
        key = path if path in checkpoint.entries else ""
        locations.append((tensorflow_variable(value), VariableLocation(path, key)))
    return KerasVariables(locations, saved.groups)


def _check_lists(groups: Collection[str], checkpoint: Checkpoint) -> None:
    """Checks that no list of layers is longer in the file: then layers are not those of training.

    Raises:
      CheckpointError: One is.
    """
    lists = {without_number(group) for group in groups}
    unmatched = {}
    for key in checkpoint.entries:
        group = _group(key)
        is_numbered = without_number(group) != group
        if group not in groups and is_numbered and without_number(group) in lists:
            unmatched[key] = key
    if unmatched:
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} also holds {listed_shapes(checkpoint, unmatched)}, "
            "which the model lacks: it has fewer layers of that class than the model that was "
            "saved. The model code is not the one that was saved"
        )


def _group(path: str) -> str:
    """Returns the path of the layer that saved a dataset."""
    return path.rpartition("/vars/")[0]


def layer_of_key(key: str) -> str:
    """Returns what holds a variable, by its key in a file of Keras or of OrbaxCheckpoint."""
    return _group(key) or _path_of(key).rpartition(".")[0]


def _by_paths(
    root: Any, checkpoint: Checkpoint, object_path: str
) -> Iterator[tuple[Any, VariableLocation]]:
    stored = _stored_paths(checkpoint, object_path)
    _check_numbers(root, checkpoint, stored)
    variable_of_path: dict[str, Any] = {}
    for variable in root.variables:
        paths = _matching(variable.path.replace("/", "."), stored)
        if len(paths) > 1:
            raise CheckpointError(
                f"variable {variable.path}{_line(variable)} may be any of {', '.join(paths[:4])} "
                f"in checkpoint {checkpoint.prefix}: call the model in the factory as training "
                "does, so that its variables get the same paths, or write checkpoint.object_path"
            )
        key = ""
        # None: it stays without a key. `TrainedModel` rejects it if a tower reads it.
        for path in paths:
            first = variable_of_path.setdefault(path, variable)
            if first is not variable:
                raise CheckpointError(
                    f"variables {first.path}{_line(first)} and {variable.path}{_line(variable)} of "
                    f"the model both fit {path} in checkpoint {checkpoint.prefix}: call the model "
                    "in the factory as training does, so that its variables get the same paths"
                )
            key = stored[path]
        yield variable.value, VariableLocation(variable.path, key)


def _stored_paths(checkpoint: Checkpoint, object_path: str) -> dict[str, str]:
    """Returns the key of each variable of a layer, by its path with dots."""
    beginning = f"{object_path}." if object_path else ""
    paths = {}
    for key in checkpoint.entries:
        path = _path_of(key)
        if path and path.startswith(beginning):
            paths[path] = key
    return paths


def _path_of(key: str) -> str:
    """Returns the path of a layer's variable by its key in a tree of Keras; "" for others."""
    # The name of the item is there if the configuration of the model is beside it.
    tree, _, path = key.removeprefix(f"{KERAS_ITEM}.").partition(".")
    if tree in _VALUES:
        return path
    return ""


def _matching(path: str, stored: Collection[str]) -> list[str]:
    """Returns the stored paths that a variable may have.

    A path begins with what was called first: the model itself in training, perhaps one of its
    methods in an export. So one path may be the end of the other.
    """
    if path in stored:
        return [path]
    longer = [stored_path for stored_path in stored if stored_path.endswith(f".{path}")]
    if longer:
        return longer
    # A name alone, such as `kernel`, is that of variables of many layers.
    ends = [end for end in stored if "." in end and path.endswith(f".{end}")]
    return sorted(ends, key=len)[-1:]


def _check_numbers(root: Any, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
    """Checks that Keras numbered the layers of the model as it did those that were saved.

    Otherwise `dense_1` may be another layer there.

    Raises:
      CheckpointError: A numbered name of the checkpoint is that of no layer.
    """
    layers = list(all_layers(root))
    names = {layer.name for layer in layers}
    classes = {
        without_number(layer.name): type(layer).__name__
        for layer in layers
        if is_automatic(layer.name, type(layer).__name__)
    }
    for path in stored:
        for name in path.split(".")[:-1]:
            kind = classes.get(without_number(name))
            if kind is not None and name not in names:
                raise CheckpointError(
                    f"checkpoint {checkpoint.prefix} has {path}, and no layer of the model is "
                    f"called {name!r}: Keras numbered the layers otherwise when the model was "
                    "trained, so a number may be that of another layer. Let the factory make all "
                    "layers of the saved model with their names in the checkpoint, as in "
                    f'{kind}(..., name="{name}"); or save the trained model with '
                    'model.save_weights("model.weights.h5"), which needs no names'
                )


def _line(variable: Any) -> str:
    return at_line(line_of_variable(variable.value))
