"""Walks the model and its checkpoint's object graph together, by attribute names, as TensorFlow's restore does."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.frameworks.loading import load_tensorflow

_COUNTED = re.compile(r"((layer|layer_with_weights)-)?\d+")
"""Names that Keras and lists give to what they hold: without one of them the others are not what was trained."""


@dataclass(frozen=True)
class Walked:
    """An object of the model.

    Attributes:
      trackable: itself.
      path: of attributes from the model to it.
      node: of the checkpoint's object at that path; None where there is none.
      children: names of the objects that it tracks.
    """

    trackable: Any
    path: str
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


def walk(root: Any, graph: ObjectGraph, start: int) -> list[Walked]:
    """Returns every object of a model, the nearest first; `start` is the root's node in the checkpoint's graph."""
    view = load_tensorflow().train.TrackableView(root)
    found: list[Walked] = []
    seen = {id(root)}
    queue: list[tuple[Any, str, int | None]] = [(root, "", start)]
    for trackable, path, node in queue:  # grows while it is walked: breadth first
        children = view.children(trackable)
        found.append(Walked(trackable, path, node, tuple(children)))
        for name, child in children.items():
            if id(child) not in seen:
                seen.add(id(child))
                below = graph.nodes[node].children.get(name) if node is not None else None
                queue.append((child, _joined(path, name), below))
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
            # A layer makes its variables when it is called: that it has none does not tell that it is another.
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
