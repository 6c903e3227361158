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
from export.tensorflow_models.lookups.records import free_name, table_name
from export.tensorflow_models.model.object_walk import walk

_COUNTED = re.compile(r"(layer|layer_with_weights)-\d+|_layers|\d+")
_COLUMN = re.compile(r"/(embedding_weights|embeddings?|weights)$")


@dataclass(frozen=True)
class Place:
    """A variable's attribute `path` from the model, and its `key` in the checkpoint ("" if it is
    not there).
    """

    path: str
    key: str


def object_paths(root: Any) -> dict[str, tuple[str, Any]]:
    """Returns the attribute path of every variable of a model and the object that holds it, by its
    resource.
    """
    found: dict[str, tuple[str, Any]] = {}
    for each in walk(root) if hasattr(root, "_trackable_children") else ():
        if each.resource:
            found.setdefault(each.resource, (each.path, each.owner))
    return found


def name_tables(
    variables: Mapping[str, Any], paths: Mapping[str, tuple[str, Any]], taken: set[str]
) -> dict[str, TableFacts]:
    """Names the tables that are plain variables, by their resources; avoids the names in `taken`.

    A name is the object path without what Keras adds to it, or, for a layer in a numbered list of
    Keras, the layer's name. `config_name` is the whole path, or, for a variable outside the model's
    objects, its variable name, whose last scope then names the table.
    """
    choices: dict[str, _Names] = {}
    for key, variable in variables.items():
        path, owner = paths.get(key, ("", None))
        whole = path or variable.name.partition(":")[0]
        longer = path or _COLUMN.sub("", whole).replace("/", ".")
        short = _short(path, owner) if path else longer.rpartition(".")[2]
        choices[key] = _Names(short, longer, whole)
    # A table that is called `users` gets this name before one that is called `_users`.
    in_turn = sorted(choices, key=lambda key: not is_name(choices[key].short))
    names: dict[str, str] = {}
    for key in in_turn:
        short = table_name(choices[key].short, "table")
        name = table_name(choices[key].longer, "table") if short in taken else short
        names[key] = free_name(short, taken) if name in taken else name
        taken.add(names[key])
    return {
        key: TableFacts(names[key], choices[key].whole, *variable.shape.as_list())
        for key, variable in variables.items()
    }


class _Names(NamedTuple):
    """Names that the model gives a table, from the shortest to its whole path."""

    short: str
    longer: str
    whole: str


def _short(path: str, owner: Any) -> str:
    steps = _COLUMN.sub("", path).split(".")
    if len(steps) > 1 and steps[-1] in ("embeddings", "_embeddings"):
        steps = steps[:-1]
    own = getattr(owner, "name", "")
    # Keras numbers the layers that it names itself: the number differs between programs.
    counted = re.sub(r"(?<!^)(?=[A-Z])", "_", type(owner).__name__).lower()
    if (
        _COUNTED.fullmatch(steps[-1])
        and isinstance(own, str)
        and own
        and not re.fullmatch(rf"{counted}(_\d+)?", own)
    ):
        return own
    plain = [step for step in steps if not step.startswith("_")]
    return ".".join(plain or steps)
