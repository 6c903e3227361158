"""Attribute paths of the variables of the user's model, by which object-based checkpoints store
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    named: dict[str, TableFacts] = {}
    for key, variable in variables.items():
        path, owner = paths.get(key, ("", None))
        whole = path or variable.name.partition(":")[0]
        longer = whole if path else _COLUMN.sub("", whole).replace("/", ".")
        short = table_name(_short(whole, owner) if path else longer.rpartition(".")[2], "table")
        name = table_name(longer, "table") if short in taken else short
        name = free_name(short, taken) if name in taken else name
        taken.add(name)
        rows, dim = variable.shape.as_list()
        named[key] = TableFacts(name, whole, rows, dim)
    return named


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
