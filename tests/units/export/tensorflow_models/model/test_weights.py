from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, NotConvertible
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.named_graphs import NamedGraph, load_named
from export.tensorflow_models.model.weights import TrainedModel
from tests.units.export.checkpoint import single_tables

v1 = tf.compat.v1
CODE = "model_tf1.py:build"


def build(width: int = 2, name: str = "kernel") -> Any:
    def model(inputs: dict[str, Any]) -> Any:
        with v1.variable_scope("tower", partitioner=v1.fixed_size_partitioner(2)):
            kernel = v1.get_variable(name, [4, width])
        with v1.variable_scope("tower", partitioner=v1.fixed_size_partitioner(2), reuse=True):
            looked_up = v1.nn.embedding_lookup(v1.get_variable(name, [4, width]), inputs["ids"])
        return tf.matmul(inputs["numbers"], kernel) + looked_up

    return model


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tf1") / "model.ckpt"
    with tf.Graph().as_default(), v1.Session() as session:
        build()({"ids": tf.constant([1]), "numbers": tf.ones([1, 4])})
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(path), write_meta_graph=False)
    return path


def traced(model: Any) -> NamedGraph:
    root = load_named("model.py:build", lambda: model)
    specs = {"ids": tf.TensorSpec([None], tf.int64), "numbers": tf.TensorSpec([None, 4])}
    v1.wrap_function(root, [specs])
    return root


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            build(name="other"),
            r"tower/other \[4, 2\] is not in the checkpoint\. The model code is not the one",
        ),
        (
            build(width=3),
            r"tower/kernel is float32 \[4, 3\] in the model and float32 \[4, 2\] there",
        ),
        (build(), "saved in partitions that the `mod` strategy looks up"),
    ],
)
def test_find_weights_by_names_of_other_variables_is_rejected(
    model: Any, message: str, prefix: Path
) -> None:
    root = traced(model)
    with pytest.raises(CheckpointError, match=message):
        TrainedModel(root, open_checkpoint(prefix), "").find_weights(root.variables.values())


def test_matrices_by_names_that_the_graph_lacks_are_noted(prefix: Path) -> None:
    checkpoint = open_checkpoint(prefix)
    root = traced(build())
    assert TrainedModel(root, checkpoint, "").note_unmatched_weights(set(checkpoint.entries)) == ()
    (note,) = TrainedModel(traced(build(name="other")), checkpoint, "").note_unmatched_weights(
        set(checkpoint.entries)
    )
    assert "also holds tower/kernel [4, 2], which the model code lacks" in note


def layers(use_bias: bool) -> Callable[[dict[str, Any]], Any]:
    def model(inputs: dict[str, Any]) -> Any:
        with v1.variable_scope("dense"):
            result = tf.matmul(inputs["numbers"], v1.get_variable("kernel", [4, 2]))
            return result + v1.get_variable("bias", [2]) if use_bias else result

    return model


def test_layer_of_the_graph_with_fewer_variables_than_were_saved_is_rejected(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.ckpt"
    with tf.Graph().as_default(), v1.Session() as session:
        layers(use_bias=True)({"numbers": tf.ones([1, 4])})
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(path), write_meta_graph=False)
    trained = TrainedModel(traced(layers(use_bias=False)), open_checkpoint(path), "")
    with pytest.raises(CheckpointError, match=r"also holds dense/bias \[2\], which the model code"):
        trained.note_unmatched_weights(trained.checkpoint.entries)


class Listed(keras.Model):  # type: ignore[misc]
    """Blocks in a list, as Keras 3 keeps them out of TensorFlow's checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [(keras.layers.Dense(3), keras.layers.Dense(2))]
        self.out = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        ((first, second),) = self.blocks
        return self.out(second(first(inputs)))


def test_find_weights_of_listed_keras_3_layers_follows_the_cure_of_its_message(
    tmp_path: Path,
) -> None:
    for saved in (False, True):
        model = Listed()
        if saved:
            model.saved = tf.train.Checkpoint(layers=model.layers)
        model(tf.ones([1, 4]))
        checkpoint = open_checkpoint(
            Path(tf.train.Checkpoint(model=model).write(str(tmp_path / f"ckpt-{saved}")))
        )
        variables = [variable.value for variable in model.variables]
        if saved:
            assert len(TrainedModel(model, checkpoint, "model").find_weights(variables)) == 6
        else:
            with pytest.raises(
                CheckpointError,
                match=r"\[4, 3\] is not in .* Keras 3.*`model.saved = .*layers=model",
            ):
                TrainedModel(model, checkpoint, "model").find_weights(variables)


def test_load_named_code_that_switches_to_tf1_gets_its_shapes_and_restores_ours() -> None:
    def switching() -> Any:
        v1.disable_v2_behavior()

        def model(features: dict[str, Any]) -> Any:
            numbers = features["numbers"]
            same = numbers == numbers  # one value in TF1, a tensor in TF2
            assert same is True
            return numbers * numbers.shape[1].value

        return model

    root = load_named("model.py:switching", switching)
    assert tf.executing_eagerly()
    np.testing.assert_array_equal(
        root.run({"numbers": tf.ones([3, 2])}, lambda name: None), tf.ones([3, 2]) * 2
    )
    assert isinstance(tf.constant([[1]]).shape[1], int)  # a Dimension in TF1
    assert tf.is_tensor(tf.constant(1) == tf.constant(1))
    assert v1.control_flow_v2_enabled()


def test_load_named_without_a_function_is_rejected() -> None:
    with pytest.raises(
        NotConvertible, match=r"model\.py:wrong returned a Sequential, but the checkpoint has only"
    ):
        load_named("model.py:wrong", tf.keras.Sequential)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (single_tables.orbax, "saved by Orbax, without an object graph"),
        (single_tables.keras, "saved by Keras; the factory returned a NoneType"),
    ],
)
def test_weights_of_other_storages_are_rejected_with_the_cure(
    tmp_path: Path, write: Callable[[Path], Path], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        TrainedModel(None, open_checkpoint(write(tmp_path)), "model").find_weights([])


class Indexed(keras.Model):  # type: ignore[misc]
    """Has a second layer, which an export may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.index = keras.layers.Dense(3, use_bias=False)

    def call(self, numbers: Any) -> Any:
        return self.index(self.first(numbers))


def notes_on(model: Any, file: Path) -> tuple[str, ...]:
    """Returns what is noted of a file of Keras beside a model."""
    checkpoint = open_checkpoint(file)
    return TrainedModel(model, checkpoint, "").note_unmatched_weights([*checkpoint.entries])


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")
def test_layers_that_no_tower_calls_are_not_noted_as_missing_code(tmp_path: Path) -> None:
    trained = Indexed()
    trained(np.ones((1, 3)))
    file = tmp_path / "model.weights.h5"
    trained.save_weights(file)
    assert notes_on(trained, file) == ()
    partly_called = Indexed()
    partly_called.first(np.ones((1, 3)))
    (note,) = notes_on(partly_called, file)
    assert note == (
        "checkpoint model.weights.h5 also holds index/vars/0 [3, 3], of layers of the model that "
        "no tower calls"
    )
