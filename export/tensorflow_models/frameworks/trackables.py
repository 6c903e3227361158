"""The objects that an object of TensorFlow or Keras tracks, by their names.

Any object of the user's may be among them, so only the attributes of layers and variables are read.
Source: TensorFlow 2.20, python/trackable/data_structures.py (`ListWrapper`, `_DictWrapper`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf

_KERAS_3_VARIABLES = "keras.src.backend.common.variables"


def children_of(trackable: Any) -> dict[str, Any]:
    """Returns the objects that TensorFlow's checkpoints would hold below an object, by their names.

    TensorFlow rejects lists and dicts that no checkpoint can hold, such as a dict with integers as
    keys. A file of Keras may hold their layers, so these get the position or the key as a name.
    """
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


def descendants_of(root: Any) -> list[Any]:
    """Returns an object and all that is tracked below it, the nearest first."""
    descendants = [root]
    seen = {id(root)}
    for trackable in descendants:  # grows while it is walked: breadth first
        for child in children_of(trackable).values():
            if id(child) not in seen:
                seen.add(id(child))
                descendants.append(child)
    return descendants


def listed_layers(trackable: Any) -> dict[str, Any]:
    """Returns the layers that a layer of Keras 3 holds, by their own names, also those in lists and
    dicts, which checkpoints of TensorFlow leave out; none for any other object.
    """
    if not is_keras_3_layer(trackable):
        return {}
    return {layer.name: layer for layer in trackable._layers if is_keras_3_layer(layer)}


def handle_of(trackable: Any) -> Any:
    """Returns the resource of a variable of TensorFlow or Keras 3; None for any other object."""
    is_of_keras = any(kind.__module__ == _KERAS_3_VARIABLES for kind in type(trackable).__mro__)
    if is_of_keras or isinstance(trackable, tf.Variable):
        return trackable.handle
    return None
