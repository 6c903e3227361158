"""Which Keras wrote an object graph, and why it is not that of a model."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from export.checkpoint.formats.object_graph import Node, ObjectGraph
from export.graphs.loading import tf
from export.tensorflow_models.model.keras_generation import generation_of_graph, why_unlike


def graph(*names: str, root: tuple[str, ...] = ()) -> ObjectGraph:
    """Returns a graph whose root has a child with these children, and children of its own."""
    leaf = Node({}, "", "", ())
    children = dict.fromkeys(names, 2)
    return ObjectGraph(
        (
            Node({"layer": 1, **dict.fromkeys(root, 2)}, "", "", ()),
            Node(children, "", "", ()),
            leaf,
        )
    )


@pytest.mark.parametrize(
    ("names", "generation"),
    [
        (("_kernel",), 3),
        (("_embeddings", "embeddings"), 3),
        (("_operations",), 3),
        (("keras_api",), 2),
        (("_index_dict",), 2),
        (("layer_with_weights-0",), 2),
        (("embeddings",), 2),
        (("layer_with_weights-x",), None),
        (("kernel", "bias"), None),
        (("_kernel", "keras_api"), None),
        (("_kernel", "keras_api", "embeddings"), None),
        (("_kernel", "layer_with_weights-12"), None),
    ],
)
def test_generation_of_a_checkpoint_follows_from_the_names_of_its_objects(
    names: tuple[str, ...], generation: int | None
) -> None:
    assert generation_of_graph(graph(*names)) == generation


def test_generation_of_a_checkpoint_without_objects_is_not_known() -> None:
    assert generation_of_graph(None) is None


def keras_2() -> Any:
    return tf.keras.Sequential([tf.keras.layers.Dense(1)])


def keras_3() -> Any:
    return keras.Sequential([keras.layers.Dense(1)])


def both() -> Any:
    model = tf.Module()
    model.older = keras_2()
    model.newer = keras_3()
    return model


def message(written: int, built: int, value: str) -> str:
    return (
        f"it was written by Keras {written}, and the model's layers are of Keras {built}: set "
        f"TF_USE_LEGACY_KERAS={value} in the environment of rowcast-export, so that tf.keras is "
        f"Keras {written}"
    )


@pytest.mark.parametrize(
    ("make", "names", "reason"),
    [
        (keras_2, ("_kernel",), message(3, 2, "0")),
        (keras_3, ("keras_api",), message(2, 3, "1")),
        (keras_2, ("keras_api",), ""),
        (keras_3, ("_kernel",), ""),
        (keras_2, ("kernel",), ""),
        (tf.Module, ("keras_api",), ""),
        (both, ("keras_api",), ""),
    ],
)
def test_checkpoint_of_the_other_keras_is_told_with_the_setting(
    make: Any, names: tuple[str, ...], reason: str
) -> None:
    assert why_unlike(make(), graph(*names)) == reason


def test_saved_model_of_keras_3_export_is_told_by_its_root() -> None:
    exported = graph("_kernel", root=("_all_variables", "_misc_assets", "signatures"))
    assert why_unlike(keras_3(), exported) == (
        "it is a SavedModel of Keras 3's model.export(), which lists variables without their "
        "layers: save the model with tf.train.Checkpoint(model=model).write(path), and name that"
    )
    assert why_unlike(keras_3(), graph("_kernel", root=("_all_variables",))) == ""
    assert why_unlike(keras_3(), graph("_kernel", "_all_variables", "_misc_assets")) == ""
    assert why_unlike(keras_3(), None) == ""
