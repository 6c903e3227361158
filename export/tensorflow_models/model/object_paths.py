"""Attribute paths of the variables of the user's model, by which object-based checkpoints store
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from export.partition.table_names import COLUMN
from export.tensorflow_models.frameworks.layer_names import is_automatic
from export.tensorflow_models.frameworks.trackables import walk

_COUNTED = re.compile(r"(layer|layer_with_weights)-\d+|_layers|\d+")
"""Names of attributes that number what they hold."""


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
    for model_object in walk(root):
        if model_object.resource:
            paths.setdefault(model_object.resource, (model_object.path, model_object.owner))
    return paths


def short_name(path: str, owner: Any) -> str:
    """Returns the shortest name of a table: its attribute path, or the name of its layer.

    Args:
      path: The attribute path of the variable.
      owner: The object that holds it.
    """
    steps = COLUMN.sub("", path).split(".")
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
