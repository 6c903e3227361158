"""Walks the model and its checkpoint's object graph together, by attribute names, as TensorFlow's restore does."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.frameworks.internals import is_keras_3_layer
from export.frameworks.loading import tf
from export.graph.origins import resource

_COUNTED = re.compile(r"((layer|layer_with_weights)-)?\d+")
"""Names that Keras and lists give to what they hold: without one of them the others are not what was trained."""


@dataclass(frozen=True)
class Walked:
    """An object of the model.

    Attributes:
      resource: of a variable; "" of any other object.
      path: of attributes from the model to it.
      owner: the object that tracks it.
      node: of the checkpoint's object at that path; None where there is none.
      children: names of the objects that it tracks.
    """

    resource: str
    path: str
    owner: Any
    node: int | None
    children: tuple[str, ...]


@dataclass(frozen=True)
class LeftOver:
    """An object of the checkpoint for which the model has none.

    Attributes:
      owner: path of the model's object that held it; "" for the model itself.
      name: what that called it.
      counted: whether it was one of a list of layers or variables, of which the model now has fewer.
      keys: of its variables, by their attribute paths from the model.
    """

    owner: str
    name: str
    counted: bool
    keys: dict[str, str]


def walk(root: Any, graph: ObjectGraph | None = None, start: int | None = None) -> list[Walked]:
    """Returns every object of a model, the nearest first; `start` is the root's node in the checkpoint's graph.

    Without a graph also the layers that Keras 3 has in lists and dicts: TensorFlow's checkpoints do not hold them.
    """
    view = tf.train.TrackableView(root)
    found: list[Walked] = []
    seen = {id(root)}
    queue: list[tuple[Any, str, Any, int | None]] = [(root, "", None, start)]
    for trackable, path, owner, node in queue:  # grows while it is walked: breadth first
        children = dict(view.children(trackable))
        if graph is None:
            children |= {layer.name: layer for layer in getattr(trackable, "_layers", ()) if is_keras_3_layer(layer)}
        handle = getattr(trackable, "handle", None)
        found.append(Walked("" if handle is None else resource(handle), path, owner, node, tuple(children)))
        for name, child in children.items():
            if id(child) not in seen:
                seen.add(id(child))
                below = None if graph is None or node is None else graph.nodes[node].children.get(name)
                queue.append((child, _joined(path, name), trackable, below))
    return found


def left_over(walked: Sequence[Walked], graph: ObjectGraph, entries: Container[str]) -> list[LeftOver]:
    """Returns what the checkpoint holds of the model's objects beyond those that the model has.

    Args:
      walked: as `walk` returns them.
      graph: of the checkpoint.
      entries: keys of its variables.
    """
    both = [(each, graph.nodes[each.node].children) for each in walked if each.node is not None]
    known = {node for each in walked if (node := each.node) is not None}
    known |= {stored[name] for each, stored in both for name in each.children if name in stored}
    found = []
    for each, stored in both:
        for name, node in stored.items():
            counted = _COUNTED.fullmatch(name) is not None
            # A layer makes its variables when it is called: that it has none does not mean that it is another.
            if node not in known and (counted or not graph.nodes[node].key):
                below = dict(_variables(graph, node, _joined(each.path, name), known))
                keys = {path: key for path, key in below.items() if key in entries}
                if keys:
                    found.append(LeftOver(each.path, name, counted, keys))
    return found


def _variables(graph: ObjectGraph, node: int, path: str, known: set[int]) -> Iterator[tuple[str, str]]:
    """Yields path and key of the variables at a node and below it; its nodes become known."""
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
