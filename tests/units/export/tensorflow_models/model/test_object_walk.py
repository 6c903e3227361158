from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.model.weights import TrainedModel

layers = tf.keras.layers
Model: Any = tf.keras.Model


class Listed(Model):  # type: ignore[misc]
    def __init__(self, count: int, unused: int = 0) -> None:
        super().__init__()
        self.blocks = [layers.Dense(3) for _ in range(count)]
        self.unused = unused

    def call(self, numbers: Any) -> Any:
        for block in self.blocks[: len(self.blocks) - self.unused]:
            numbers = block(numbers)
        return numbers


class Named(Model):  # type: ignore[misc]
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, layers.Dense(3))
        self.names = names

    def call(self, numbers: Any) -> Any:
        for name in self.names:
            numbers = getattr(self, name)(numbers)
        return numbers


def functional(count: int) -> Any:
    inputs = outputs = layers.Input([3])
    for _ in range(count):
        outputs = layers.Dense(3)(outputs)
    return tf.keras.Model(inputs, outputs)


def sequential(count: int) -> Any:
    return tf.keras.Sequential([layers.Dense(3) for _ in range(count)])


def saved(model: Any, path: Path) -> Checkpoint:
    """Trains a model for a step and saves it with all that Keras keeps beside its layers."""
    model.compile("adam", loss="mse", metrics=["mae"])
    model.fit(tf.ones([2, 3]), tf.ones([2, 3]), verbose=0)
    return open_checkpoint(Path(tf.train.Checkpoint(model=model).write(str(path / "model"))))


def built(make: Callable[[], Any]) -> Any:
    with tables_unallocated():
        model = make()
        model(tf.ones([1, 3]))
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            Listed,
            r"blocks \(test_object_walk.py:\d+\) has no 2, but there is blocks.2.kernel \[3, 3\], "
            r"blocks.2.bias",
        ),
        (
            sequential,
            r"the model \(.*py:\d+\) has no layer_with_weights-2, but there is "
            r"layer_with_weights-2.kernel",
        ),
        (
            functional,
            r"the model \(.*py:\d+\) has no layer_with_weights-2, but there is "
            r"layer_with_weights-2.kernel",
        ),
    ],
)
def test_fewer_layers_than_in_training_are_rejected_with_the_line(
    make: Callable[[int], Any], message: str, tmp_path: Path
) -> None:
    checkpoint = saved(make(3), tmp_path)
    whole = built(lambda: make(3))
    fewer = built(lambda: make(2))
    assert (
        len(TrainedModel(whole, checkpoint, "model").find_weights(whole.trainable_variables)) == 6
    )
    with pytest.raises(
        CheckpointError, match=message + r".*\. The model code is not the one that was saved"
    ):
        TrainedModel(fewer, checkpoint, "model").find_weights(fewer.trainable_variables)


def test_layer_that_only_training_calls_is_accepted(tmp_path: Path) -> None:
    checkpoint = saved(Listed(3), tmp_path)
    model = built(lambda: Listed(3, unused=1))
    assert (
        len(TrainedModel(model, checkpoint, "model").find_weights(model.trainable_variables)) == 4
    )
    assert {
        unmatched.name for unmatched in TrainedModel(model, checkpoint, "model").unmatched_objects
    } <= {
        "optimizer",
        "keras_api",
    }


def test_layers_that_the_code_lacks_are_noted_but_no_optimizer_or_metric(tmp_path: Path) -> None:
    checkpoint = saved(Named("first", "second"), tmp_path)
    dense = {entry.key for entry in recognize(checkpoint).dense}
    whole = built(lambda: Named("first", "second"))
    fewer = built(lambda: Named("first"))
    assert TrainedModel(whole, checkpoint, "model").note_unmatched_weights(dense) == ()
    TrainedModel(fewer, checkpoint, "model").find_weights(fewer.trainable_variables)
    (note,) = TrainedModel(fewer, checkpoint, "model").note_unmatched_weights(dense)
    assert (
        "checkpoint model also holds second.kernel [3, 3], second.bias [3], which the model code "
        "lacks" in note
    )
