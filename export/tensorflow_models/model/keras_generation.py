"""The generation of Keras that wrote a checkpoint, and that of a model's layers.

Keras 2 (tf-keras) and Keras 3 track the same layers under other attribute names, so a checkpoint of
one is not that of a model of the other. `tf.keras` is either, by an environment variable.
Source: tf-keras 2.20 and Keras 3.15: the attributes that layers, functional models and optimizers
track; Keras 3.15, src/export/saved_model.py (ExportArchive).
"""

from __future__ import annotations

import re
from typing import Any, Literal

from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.reader import Checkpoint
from export.graphs.loading import how_to_prefer_keras
from export.tensorflow_models.frameworks.trackables import walk
from export.tensorflow_models.model.keras_variables import saved_by_keras

Generation = Literal[2, 3]

_KERAS_3 = frozenset({"_embeddings", "_kernel", "_operations", "_trainable_variables_indices"})
"""Attributes that only Keras 3 tracks."""
_KERAS_2 = frozenset({"keras_api", "_index_dict"})
"""Attributes that only Keras 2 tracks."""
_LAYERS_OF_KERAS_2 = re.compile(r"layer_with_weights-\d+")
_EXPORTED = frozenset({"_all_variables", "_misc_assets"})
"""What the root of a SavedModel of Keras 3's `model.export` tracks: lists, but no layers."""


def generation_of_checkpoint(checkpoint: Checkpoint) -> Generation | None:
    """Returns the generation of Keras that wrote a checkpoint; None if nothing in it shows that."""
    storage = checkpoint.storage
    # The file states it; otherwise only the format, or names of attributes, show it.
    major = storage.keras_version.partition(".")[0]
    if major == "2":
        return 2
    if major == "3":
        return 3
    # In HDF5, Keras 3 alone says the names of layers; Orbax is a format of Keras 3.
    if storage.layer_names or (storage.kind == "Orbax" and saved_by_keras(checkpoint)):
        return 3
    return generation_of_graph(checkpoint.graph)


def generation_of_graph(graph: ObjectGraph | None) -> Generation | None:
    """Returns the generation of Keras that wrote an object graph; None if nothing in it shows that,
    or both did.
    """
    if graph is None:
        return None
    names = {name for _, node in graph.holders for name in node.children}
    is_newer = not names.isdisjoint(_KERAS_3)
    is_older = not names.isdisjoint(_KERAS_2) or any(map(_LAYERS_OF_KERAS_2.fullmatch, names))
    if is_newer and not is_older:
        return 3
    if is_older and not is_newer:
        return 2
    # A table's attribute in Keras 2; a model without Keras may call it so, too.
    if "embeddings" in names and not is_newer:
        return 2
    return None


def why_unlike(root: Any, graph: ObjectGraph | None) -> str:
    """Returns why a checkpoint's objects are not those of a model, and the cure; "" if no
    generation of Keras explains it.
    """
    if graph is None:
        return ""
    if graph.nodes[0].children.keys() >= _EXPORTED:
        return (
            "it is a SavedModel of Keras 3's model.export(), which lists variables without their "
            "layers: save the model with tf.train.Checkpoint(model=model).write(path), and name "
            "that"
        )
    written = generation_of_graph(graph)
    built = _generation_of_model(root)
    if written is None or built is None or written == built:
        return ""
    return (
        f"it was written by Keras {written}, and the model's layers are of Keras {built}: "
        f"{how_to_prefer_keras(written)}"
    )


def _generation_of_model(root: Any) -> Generation | None:
    """Returns the generation of a model's layers; None if it has none, or those of both."""
    libraries = {
        kind.__module__.partition(".")[0]
        for model_object in walk(root)
        for kind in type(model_object.value).__mro__
    }
    if "tf_keras" in libraries and "keras" in libraries:
        return None
    if "tf_keras" in libraries:
        return 2
    if "keras" in libraries:
        return 3
    return None
