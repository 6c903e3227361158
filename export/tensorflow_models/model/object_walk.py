"""Walks the model and its checkpoint's object graph together, by attribute names, as TensorFlow's
restore does.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.graphs.walks import resource
from export.tensorflow_models.frameworks.trackables import children_of, handle_of, listed_layers

_COUNTED = re.compile(r"((layer|layer_with_weights)-)?\d+")
"""Numbered names of Keras and of lists: if one is missing, the others are not those of training."""


@dataclass(frozen=True)
class ModelObject:
    """An object of the model.

    Attributes:
      resource: the resource of a variable; "" for any other object.
      path: its attribute path from the model.
      owner: the object that tracks it.
      node: the checkpoint's object at that path; None if there is none.
      children: names of the objects that it tracks.
      variables: those of them that are variables.
    """

    resource: str
    path: str
    owner: Any
    node: int | None
    children: tuple[str, ...]
    variables: tuple[str, ...]


@dataclass(frozen=True)
class UnmatchedObject:
    """An object of the checkpoint without a counterpart in the model.

    Attributes:
      owner: path of the model's object that held it; "" is the model itself.
      name: its attribute there.
      counted: whether it was in a list of layers or variables that is shorter in the model.
      keys: checkpoint keys of its variables, by their attribute paths from the model.
    """

    owner: str
    name: str
    counted: bool
    keys: dict[str, str]


def walk(
    root: Any, graph: ObjectGraph | None = None, start: int | None = None
) -> list[ModelObject]:
    """Returns every object of a model, the nearest first; `start` is the root's node in the
    checkpoint's graph.

    Without a graph also the layers that Keras 3 holds in lists and dicts, which TensorFlow's
    checkpoints leave out.
    """
    found: list[ModelObject] = []
    seen = {id(root)}
    queue: list[tuple[Any, str, Any, int | None]] = [(root, "", None, start)]
    for trackable, path, owner, node in queue:  # grows while it is walked: breadth first
        children = children_of(trackable)
        if graph is None:
            children |= listed_layers(trackable)
        handle = handle_of(trackable)
        found.append(
            ModelObject(
                "" if handle is None else resource(handle),
                path,
                owner,
                node,
                tuple(children),
                tuple(name for name, child in children.items() if handle_of(child) is not None),
            )
        )
        for name, child in children.items():
            if id(child) not in seen:
                seen.add(id(child))
                below = (
                    None if graph is None or node is None else graph.nodes[node].children.get(name)
                )
                queue.append((child, _joined(path, name), trackable, below))
    return found


def unmatched_objects(
    walked: Sequence[ModelObject], graph: ObjectGraph, entries: Container[str]
) -> list[UnmatchedObject]:
    """Returns the objects that the checkpoint holds and the model has no counterpart for.

    Args:
      walked: as `walk` returns them.
      graph: the checkpoint's object graph.
      entries: keys of its variables.
    """
    both = [(each, graph.nodes[each.node].children) for each in walked if each.node is not None]
    known = {node for each in walked if (node := each.node) is not None}
    known |= {stored[name] for each, stored in both for name in each.children if name in stored}
    found = []
    for each, stored in both:
        for name, node in stored.items():
            counted = _COUNTED.fullmatch(name) is not None
            # A layer creates its variables when it is called: a layer without variables may still
            # be the same.
            if node not in known and (counted or not graph.nodes[node].key):
                below = dict(_variables(graph, node, _joined(each.path, name), known))
                keys = {path: key for path, key in below.items() if key in entries}
                if keys:
                    found.append(UnmatchedObject(each.path, name, counted, keys))
    return found


def left_out_variables(walked: Sequence[ModelObject], graph: ObjectGraph) -> dict[str, str]:
    """Returns the variables that the checkpoint holds of an object which has others in the model,
    and not these: their keys by their attribute paths. An object without any variable may not have
    been called, and makes them then.

    Args:
      walked: as `walk` returns them.
      graph: the checkpoint's object graph.
    """
    known = {each.node for each in walked}
    both = [(each, graph.nodes[each.node].children) for each in walked if each.node is not None]
    return {
        _joined(each.path, name): graph.nodes[node].key
        for each, stored in both
        if not stored.keys().isdisjoint(each.variables)
        for name, node in stored.items()
        if graph.nodes[node].key and name not in each.children and node not in known
    }


def _variables(
    graph: ObjectGraph, node: int, path: str, known: set[int]
) -> Iterator[tuple[str, str]]:
    """Yields path and key of the variables at a node and below it, and adds its nodes
    to `known`.
    """
    known.add(node)
    queue = [(node, path)]
    for at, where in queue:  # grows while it is walked: breadth first
        if graph.nodes[at].key:
            yield where, graph.nodes[at].key
        for name, child in graph.nodes[at].children.items():
            if child not in known:
                known.add(child)
                queue.append((child, _joined(where, name)))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
