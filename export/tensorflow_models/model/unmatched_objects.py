"""What the object graph of a checkpoint holds and the model lacks: other objects, or variables of
one object.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from export.checkpoint.formats.object_graph import ObjectGraph
from export.tensorflow_models.frameworks.trackables import ModelObject, handle_of, joined

_COUNTED = re.compile(r"((layer|layer_with_weights)-)?\d+")
"""Numbered names of Keras and of lists: if one is missing, the rest are not those of training."""


@dataclass(frozen=True)
class UnmatchedObject:
    """An object of the checkpoint without a counterpart in the model.

    Attributes:
      owner: The path of the model's object that held it; "" is the model itself.
      name: The attribute by which the owner held it.
      counted: Whether it was in a list of layers or variables that is shorter in the model.
      keys: The checkpoint's keys of its variables, by their attribute paths from the model.
    """

    owner: str
    name: str
    counted: bool
    keys: dict[str, str]


def unmatched_objects(
    walked: Sequence[ModelObject], graph: ObjectGraph, entries: Container[str]
) -> list[UnmatchedObject]:
    """Returns the objects that the checkpoint holds and the model has no counterpart for.

    Args:
      walked: The objects of the model, as `walk` returns them.
      graph: The checkpoint's object graph.
      entries: The keys of its variables.
    """
    matched = _matched(walked, graph)
    seen = {model_object.node for model_object in walked if model_object.node is not None}
    for model_object, stored in matched:
        seen.update(stored[name] for name in model_object.children if name in stored)

    unmatched = []
    for model_object, stored in matched:
        for name, node in stored.items():
            if node in seen:
                continue
            # A layer creates its variables when it is called: a layer without variables may still
            # be the same.
            is_counted = _COUNTED.fullmatch(name) is not None
            if graph.nodes[node].key and not is_counted:
                continue
            variables = _variables(graph, node, joined(model_object.path, name), seen)
            keys = {path: key for path, key in variables if key in entries}
            if keys:
                unmatched.append(UnmatchedObject(model_object.path, name, is_counted, keys))
    return unmatched


def left_out_variables(walked: Sequence[ModelObject], graph: ObjectGraph) -> dict[str, str]:
    """Returns the variables that the checkpoint holds of an object which has variables in the
    model, and not these: their keys by their attribute paths. An object without any variable may
    not have been called, and makes them then.

    Args:
      walked: The objects of the model, as `walk` returns them.
      graph: The checkpoint's object graph.
    """
    nodes_in_model = {model_object.node for model_object in walked}
    left_out = {}
    for model_object, stored in _matched(walked, graph):
        children = model_object.children
        variables = {name for name, child in children.items() if handle_of(child) is not None}
        if variables.isdisjoint(stored):
            continue
        for name, node in stored.items():
            key = graph.nodes[node].key
            is_in_model = name in children or node in nodes_in_model
            if key and not is_in_model:
                left_out[joined(model_object.path, name)] = key
    return left_out


def _matched(
    walked: Sequence[ModelObject], graph: ObjectGraph
) -> list[tuple[ModelObject, Mapping[str, int]]]:
    """Returns the objects that the checkpoint has, too, each with its children there."""
    return [
        (model_object, graph.nodes[model_object.node].children)
        for model_object in walked
        if model_object.node is not None
    ]


def _variables(
    graph: ObjectGraph, start: int, path: str, seen: set[int]
) -> Iterator[tuple[str, str]]:
    """Yields path and key of the variables at a node and below it, and adds its nodes to `seen`."""
    seen.add(start)
    queue = [(start, path)]
    for node, node_path in queue:  # grows while it is walked: breadth first
        if graph.nodes[node].key:
            yield node_path, graph.nodes[node].key
        for name, child in graph.nodes[node].children.items():
            if child not in seen:
                seen.add(child)
                queue.append((child, joined(node_path, name)))
