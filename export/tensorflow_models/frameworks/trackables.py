"""The objects that an object of TensorFlow or Keras tracks, by their names.

Any object of the user's may be among them, so only the attributes of layers and variables are read.
Source: TensorFlow 2.20, python/trackable/data_structures.py (`ListWrapper`, `_DictWrapper`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.checkpoint.formats.object_graph import ObjectGraph
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.graphs.walks import resource

_KERAS_3_VARIABLES = "keras.src.backend.common.variables"


def children_of(trackable: Any) -> dict[str, Any]:
    """Returns the objects that TensorFlow's checkpoints would hold below an object, by their names;
    {} for other objects than those of TensorFlow and Keras.

    TensorFlow rejects lists and dicts that no checkpoint can hold, such as a dict with integers as
    keys. A file of Keras may hold their layers, so these get the position or the key as a name.
    """
    if not hasattr(type(trackable), "_trackable_children"):
        return {}
    try:
        return dict(tf.train.TrackableView.children(trackable))
    except ValueError:
        return {
            str(key): value
            for key, value in _elements(trackable)
            if hasattr(type(value), "_trackable_children")
        }


def _elements(collection: Any) -> list[tuple[Any, Any]]:
    """Returns the elements of a list or dict with their positions or keys; [] for other objects."""
    if isinstance(collection, Mapping):
        return list(collection.items())
    if isinstance(collection, Sequence):
        return list(enumerate(collection))
    return []


@dataclass(frozen=True)
class ModelObject:
    """An object of a model.

    Attributes:
      value: The object.
      path: Its attribute path from the model.
      owner: The object that tracks it; None of the model itself.
      node: The checkpoint's object at that path; None if there is none.
      children: The objects that it tracks, by their names.
    """

    value: Any
    path: str
    owner: Any
    node: int | None
    children: Mapping[str, Any]

    @property
    def resource(self) -> str:
        """The resource of a variable; "" for any other object."""
        handle = handle_of(self.value)
        if handle is None:
            return ""
        return resource(handle)


def walk(
    root: Any, graph: ObjectGraph | None = None, start: int | None = None
) -> list[ModelObject]:
    """Returns every object of a model, the nearest first; `start` is the root's node in the
    checkpoint's graph.

    Without a graph also the layers that Keras 3 holds in lists and dicts, which TensorFlow's
    checkpoints leave out.
    """
    walked: list[ModelObject] = []
    seen = {id(root)}
    queue: list[tuple[Any, str, Any, int | None]] = [(root, "", None, start)]
    for value, path, owner, node in queue:  # grows while it is walked: breadth first
        children = children_of(value)
        if graph is None:
            children = _with_listed_layers(children, value)
        walked.append(ModelObject(value, path, owner, node, children))
        for name, child in children.items():
            # An object that is held several times is walked once, by its shortest path.
            if id(child) in seen:
                continue
            seen.add(id(child))
            child_node = None
            if graph is not None and node is not None:
                child_node = graph.nodes[node].children.get(name)
            queue.append((child, joined(path, name), value, child_node))
    return walked


def joined(path: str, name: str) -> str:
    """Returns the attribute path of what the object at a path holds."""
    if not path:
        return name
    return f"{path}.{name}"


def _with_listed_layers(children: dict[str, Any], value: Any) -> dict[str, Any]:
    """Adds the layers that a layer of Keras 3 holds, by their own names, also those in lists and
    dicts, which checkpoints of TensorFlow leave out; none for any other object.
    """
    if not is_keras_3_layer(value):
        return children
    layers = dict(children)
    for position, layer in enumerate(value._layers):
        name = layer.name
        if layers.get(name, layer) is not layer:
            # Layers in different lists may have one name.
            name = f"{name}.{position}"
        layers[name] = layer
    return layers


def handle_of(trackable: Any) -> Any:
    """Returns the resource of a variable of TensorFlow or Keras 3; None for any other object."""
    is_of_keras = any(kind.__module__ == _KERAS_3_VARIABLES for kind in type(trackable).__mro__)
    if is_of_keras or isinstance(trackable, tf.Variable):
        return trackable.handle
    return None
