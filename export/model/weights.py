"""Dense weights of towers from a checkpoint, by its object graph or by names; never a live value, never a table.

The user's model and the checkpoint's object graph are walked together by attribute names, as TensorFlow's own restore
does, but only the variables that a tower reads are read and checked: so tables cost nothing, and what the towers do not
need may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.inventory.name_tables import is_partitioned
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.frameworks.named_graphs import NamedGraph
from export.frameworks.placeholders import line_of_variable
from export.graph.origins import resource
from export.model.object_walk import LeftOver, left_over, walk
from export.model.tracing import TracedModel
from export.user_lines import at_line

_SHOWN = 5
_UNSEEN = (
    "tf.train.Checkpoint passes over what the model holds otherwise than as its attributes, as layers that Keras 3 has "
    "in lists and dicts. Let an attribute hold them, where the model is made for training and in the factory: "
    "`model.saved = tf.train.Checkpoint(layers=model.layers)`, or `block.saved` of the layer whose list it is; and "
    "write the checkpoint anew"
)


@dataclass(frozen=True)
class Place:
    """Where a variable sits: `path` of attributes from the model, and its `key` in the checkpoint ("": not there)."""

    path: str
    key: str


def restore_weights(variables: Iterable[Any], root: Any, checkpoint: Checkpoint, object_path: str) -> None:
    """Assigns each variable its value in the checkpoint; arguments and errors as of `find_weights`."""
    for variable, key in find_weights(variables, root, checkpoint, object_path):
        variable.assign(checkpoint.read_all(key))
        if hasattr(variable, "restored"):
            variable.restored = True  # a matrix that is no table, whatever its size: TensorFlow saves it


def find_weights(
    variables: Iterable[Any], root: Any, checkpoint: Checkpoint, object_path: str
) -> list[tuple[Any, str]]:
    """Finds the key of each variable in the checkpoint; reads none.

    Args:
      variables: those that a tower reads.
      root: the user's model, which they belong to.
      checkpoint: what was trained.
      object_path: attribute path of the model in the checkpoint, the recipe's `checkpoint.object_path`.
    Raises:
      CheckpointError: the checkpoint has no object graph or no object there, or variables are missing or of another
        shape or dtype, or it has more layers in a list of which the tower reads some; names them.
    """
    places = find_places(root, checkpoint, object_path)
    problems = []
    found = []
    lines = {}
    unseen = False
    for variable in variables:
        known = places.get(resource(variable.handle))
        unseen |= known is None
        place = known or Place(variable.name, "")
        shape, dtype = tuple(variable.shape.as_list()), variable.dtype.name
        lines[place.path] = made = at_line(line_of_variable(variable))
        if not place.key:
            problems.append(f"{place.path} {list(shape)}{made} is not in the checkpoint")
            continue
        entry = checkpoint.entries[place.key]
        if tuple(entry.shape) != shape or entry.dtype != dtype:
            problems.append(
                f"{place.path} is {dtype} {list(shape)} in the model{made} and {entry.dtype} {list(entry.shape)} there"
            )
            continue
        if getattr(variable, "mod", False) and is_partitioned(entry):
            problems.append(
                f"{place.path} was saved in partitions that the `mod` strategy looks up, and stays inside a tower as a "
                "whole, where its rows are others"
            )
            continue
        found.append((variable, place.key))
    for left in find_left_over(root, checkpoint, object_path):
        read = [line for path, line in lines.items() if path.startswith(f"{left.owner}." if left.owner else "")]
        if left.counted and read:
            owner = left.owner or "the model"
            problems.append(f"{owner}{read[0]} has no {left.name}, but there is {_shapes(left.keys, checkpoint)}")
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        why = "The model code is not the one that was saved"
        if not isinstance(root, NamedGraph):
            why = (
                _UNSEEN if unseen else f"{why}, or checkpoint.object_path ({object_path!r}) is not where the model sits"
            )
        raise CheckpointError(f"checkpoint {checkpoint.prefix}: {'; '.join(problems[:_SHOWN])}{more}. {why}")
    return found


def why_missing(variable: Any, root: Any, checkpoint: Checkpoint, object_path: str) -> str:
    """Returns why a checkpoint lacks a variable, and the cure, where TensorFlow could not have saved it; else ""."""
    places = {} if isinstance(root, NamedGraph) else find_places(root, checkpoint, object_path)
    return _UNSEEN if places and resource(variable.handle) not in places else ""


def find_places(root: Any, checkpoint: Checkpoint, object_path: str) -> dict[str, Place]:
    """Finds every variable of the model in the checkpoint, tables included, by the name of its resource.

    Raises:
      CheckpointError: the checkpoint has no object graph, or no object at `object_path`.
    """
    if isinstance(root, NamedGraph):
        return {
            resource(variable.handle): Place(name, root.key(name, checkpoint.entries))
            for name, variable in root.variables.items()
        }
    graph = checkpoint.graph
    if graph is None:
        kind = checkpoint.storage.kind
        how = "by variable names" if kind == "TensorFlow" else f"by {kind}"
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} was saved {how}, without an object graph, by which a model's weights are "
            "found; load it into the model and save that with tf.train.Checkpoint, or export its tables alone "
            "(rowcast-export tables); where code of TF1 builds the graph, let the factory return a function that does"
        )
    places: dict[str, Place] = {}
    for each in walk(root, graph, find_node(checkpoint, graph, object_path)):
        known = places.get(each.resource)
        if each.resource and (known is None or not known.key):
            key = graph.nodes[each.node].key if each.node is not None else ""
            key = checkpoint.storage.averages.get(key, key)
            places[each.resource] = Place(each.path, key if key in checkpoint.entries else "")
    return places


def find_node(checkpoint: Checkpoint, graph: ObjectGraph, object_path: str) -> int:
    """Returns the node of a checkpoint's graph at an object path.

    Raises:
      CheckpointError: there is none.
    """
    node = 0
    for step in path_steps(object_path):
        children = graph.nodes[node].children
        if step not in children:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} has no object {object_path!r} (checkpoint.object_path): there is no "
                f"{step!r} among {', '.join(sorted(children)) or 'no attributes'}"
            )
        node = children[step]
    return node


def model_place(variable: Any, root: Any, checkpoint: Checkpoint) -> str:
    """Returns the object at the top of a checkpoint that holds the model with a variable; "": there is none."""
    graph = checkpoint.graph
    if graph is None or isinstance(root, NamedGraph):
        return ""
    for child in sorted(graph.nodes[0].children):
        place = find_places(root, checkpoint, child).get(resource(variable.handle))
        if place is not None and place.key:
            return child
    return ""


def find_left_over(root: Any, checkpoint: Checkpoint, object_path: str) -> list[LeftOver]:
    """Returns what the checkpoint holds of the model's objects beyond those that the model has; () by names."""
    graph = checkpoint.graph
    if graph is None or isinstance(root, NamedGraph):
        return []
    return left_over(walk(root, graph, find_node(checkpoint, graph, object_path)), graph, checkpoint.entries)


def trained_beside(root: Any, checkpoint: Checkpoint, object_path: str, dense: Collection[str]) -> tuple[str, ...]:
    """Returns a note where the checkpoint holds matrices of the model that its code has not: of objects, or by name.

    Args:
      root, checkpoint, object_path: as of `find_weights`.
      dense: keys of what is neither a table nor an optimizer's.
    """
    found = {key for key in dense if len(checkpoint.entries[key].shape) > 1}
    if isinstance(root, NamedGraph):
        known = {place.key for place in find_places(root, checkpoint, object_path).values()}
        matrices = {key: key for key in sorted(found - known - {*root.variables})}  # averages stand beside their values
    else:
        beyond = [left.keys for left in find_left_over(root, checkpoint, object_path)]
        matrices = {path: key for keys in beyond if not found.isdisjoint(keys.values()) for path, key in keys.items()}
    if not matrices:
        return ()
    return (
        f"checkpoint {checkpoint.name} also holds {_shapes(matrices, checkpoint)}, of which the model code has "
        "nothing; where that is part of what was trained to give these outputs, the code is another",
    )


def _shapes(keys: Mapping[str, str], checkpoint: Checkpoint) -> str:
    shown = [f"{path} {list(checkpoint.entries[key].shape)}" for path, key in keys.items()]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def find_table_keys(model: TracedModel, checkpoint: Checkpoint, object_path: str) -> dict[str, str]:
    """Returns the checkpoint's key of each of the model's tables.

    A table that the checkpoint stores otherwise than as a variable of its own (a stack of a SparseCore) is left out: it
    is known there by its name.
    """
    places = find_places(model.root, checkpoint, object_path)
    found = {name: places.get(resource(variable.handle)) for name, variable in model.tables.items()}
    return {name: place.key for name, place in found.items() if place is not None and place.key}


def path_steps(object_path: str) -> list[str]:
    """Returns the attributes of an object path: `a.b` or `a/b`."""
    return [step for step in re.split(r"[./]", object_path) if step]
