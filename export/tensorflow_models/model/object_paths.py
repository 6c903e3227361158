"""Attribute paths of the variables of the user's model, by which object-based checkpoints store
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bundle.format.paths import is_name
from export.front_end.specs import TableFacts
from export.partition.lookups.records import free_name, table_name
from export.tensorflow_models.frameworks.layer_names import is_automatic
from export.tensorflow_models.model.object_walk import walk

_COUNTED = re.compile(r"(layer|layer_with_weights)-\d+|_layers|\d+")
"""Names of attributes that number what they hold."""
_COLUMN = re.compile(r"/(embedding_weights|embeddings?|weights)$")
"""The end of a variable's name that layers and columns give every table."""


@dataclass(frozen=True)
class VariableLocation:
    """The location of a variable in the model and in the checkpoint.

    Attributes:
      path: Its attribute path from the model.
      key: Its key in the checkpoint; "": it is not there.
    """

    path: str
    key: str


def object_paths(root: Any) -> dict[str, tuple[str, Any]]:
    """Returns the attribute path of every variable of a model and the object that holds it, by its
    resource.
    """
    paths: dict[str, tuple[str, Any]] = {}
    if not hasattr(root, "_trackable_children"):
        return paths
    for model_object in walk(root):
        if model_object.resource:
            paths.setdefault(model_object.resource, (model_object.path, model_object.owner))
    return paths


def name_tables(
    variables: Mapping[str, Any], paths: Mapping[str, tuple[str, Any]], used_names: set[str]
) -> dict[str, TableFacts]:
    """Names the tables that are plain variables, by their resources; avoids the names in
    `used_names`, and adds the new ones.

    A name is the object path without what Keras adds to it, or, for a layer in a numbered list of
    Keras, the layer's name. `config_name` is the whole path, or, for a variable outside the model's
    objects, its variable name, whose last scope then names the table.
    """
    choices: dict[str, _Names] = {}
    for key, variable in variables.items():
        path, owner = paths.get(key, ("", None))
        if path:
            choices[key] = _Names(_short_name(path, owner), path, path)
        else:
            whole = variable.name.partition(":")[0]
            longer = _COLUMN.sub("", whole).replace("/", ".")
            choices[key] = _Names(longer.rpartition(".")[2], longer, whole)

    # A table that is called `users` gets this name before one that is called `_users`.
    in_turn = sorted(choices, key=lambda key: not is_name(choices[key].short))
    names: dict[str, str] = {}
    for key in in_turn:
        short = table_name(choices[key].short, "table")
        name = short
        if name in used_names:
            name = table_name(choices[key].longer, "table")
        if name in used_names:
            name = free_name(short, used_names)
        names[key] = name
        used_names.add(name)
    return {
        key: TableFacts(names[key], choices[key].whole, *variable.shape.as_list())
        for key, variable in variables.items()
    }


class _Names(NamedTuple):
    """Names that the model gives a table, from the shortest to its whole path."""

    short: str
    longer: str
    whole: str


def _short_name(path: str, owner: Any) -> str:
    """Returns the shortest name of a table: its attribute path, or the name of its layer.

    Args:
      path: The attribute path of the variable.
      owner: The object that holds it.
    """
    steps = _COLUMN.sub("", path).split(".")
    if len(steps) > 1 and steps[-1] in ("embeddings", "_embeddings"):
        steps = steps[:-1]

    # Keras numbers the layers that it names itself: the number differs between programs.
    layer_name = getattr(owner, "name", "")
    has_own_name = (
        isinstance(layer_name, str)
        and layer_name != ""
        and not is_automatic(layer_name, type(owner).__name__)
    )
    if has_own_name and _COUNTED.fullmatch(steps[-1]):
        return layer_name

    # Private attributes, such as `_layers`, are those of Keras.
    plain = [step for step in steps if not step.startswith("_")]
    return ".".join(plain or steps)
