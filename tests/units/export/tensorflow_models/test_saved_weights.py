"""Models beside checkpoints that training saved of them, or of other models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from export.errors import CheckpointError
from export.graphs.loading import tf
from tests.units.export.tensorflow_models.planning import (
    Tables,
    assert_says,
    planned,
    refusal,
    written,
)

v1 = tf.compat.v1
layers = tf.keras.layers
INPUTS = {"x": {"dtype": "float32", "shape": [3]}, "ids": {"dtype": "int64"}}
LINE = "(test_saved_weights.py:"
NOT_THE_SAVED = "not the one that was saved"


class Block(tf.Module):  # type: ignore[misc]
    """Matrices and vectors by their names, all of which a call reads."""

    def __init__(self, **shapes: Any) -> None:
        super().__init__()
        self.shapes = shapes
        for name, shape in shapes.items():
            setattr(self, name, tf.Variable(tf.ones(shape), name=name))

    def __call__(self, inputs: Any) -> Any:
        total = tf.add_n([tf.reduce_sum(getattr(self, name)) for name in self.shapes])
        return inputs["x"] * total


class Stacked(tf.keras.Model):  # type: ignore[misc]
    """Layers in a list, of which a call may leave some out."""

    def __init__(self, count: int, unused: int = 0) -> None:
        super().__init__()
        self.blocks = [layers.Dense(3) for _ in range(count)]
        self.used = count - unused

    def call(self, inputs: Any) -> Any:
        numbers = inputs["x"]
        for block in self.blocks[: self.used]:
            numbers = block(numbers)
        return numbers


class Listed(keras.Model):  # type: ignore[misc]
    """Layers in a list, as Keras 3 keeps them out of TensorFlow's checkpoints."""

    def __init__(self, saved: bool = False) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(3), keras.layers.Dense(2)]
        if saved:
            self.saved = tf.train.Checkpoint(layers=self.layers)

    def call(self, inputs: Any) -> Any:
        return self.blocks[1](self.blocks[0](inputs["x"]))


def table(rows: int = 20, name: str = "users") -> Any:
    """Returns a model of one table."""
    return Tables(lambda model, f: tf.gather(getattr(model, name), f["ids"]), **{name: rows})


def called(model: Any) -> Any:
    model({"x": tf.ones([1, 3])})
    return model


def trained(model: Any) -> Any:
    """Returns a model after a step, with all that Keras keeps beside its layers."""
    model.compile("adam", loss="mse", metrics=["mae"])
    model.fit({"x": tf.ones([2, 3])}, tf.ones([2, 3]), verbose=0)
    return model


Save = Callable[[], dict[str, Any]]
Make = Callable[[], Any]
REFUSED: dict[str, tuple[Save, Make, str, tuple[str, ...]]] = {
    "other shape": (
        lambda: {"model": Block(kernel=[2, 3])},
        lambda: Block(kernel=[3, 2]),
        "model",
        ("kernel", "[3, 2] in the model", "[2, 3]", LINE, NOT_THE_SAVED),
    ),
    "more variables": (
        lambda: {"model": Block(kernel=[2])},
        lambda: Block(kernel=[2], **{f"v{number}": [number + 1] for number in range(8)}),
        "model",
        ("v0 [1]", LINE, "v4 [5]", "3 more", NOT_THE_SAVED),
    ),
    "layers in a list of Keras 3": (
        lambda: {"model": called(Listed())},
        Listed,
        "model",
        ("Keras 3", "model.saved = "),
    ),
    "fewer layers in a list": (
        lambda: {"model": trained(Stacked(3))},
        lambda: Stacked(2),
        "model",
        ("blocks", LINE, "blocks.2.kernel [3, 3]", NOT_THE_SAVED),
    ),
    "model under a name": (
        lambda: {"net": table()},
        table,
        "",
        ("'net'", 'checkpoint.object_path = "net"'),
    ),
}
"""What was saved, what the factory returns, the object path, and words."""


@pytest.mark.parametrize(("save", "make", "object_path", "words"), REFUSED.values(), ids=REFUSED)
def test_model_that_is_not_the_saved_one_is_refused_with_the_difference(
    save: Save,
    make: Make,
    object_path: str,
    words: tuple[str, ...],
    tmp_path: Path,
) -> None:
    message = refusal(
        CheckpointError,
        make,
        written(tmp_path, **save()),
        INPUTS,
        object_path=object_path,
        code={"table_threshold": 10},
    )
    assert_says(message, *words)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")
def test_saved_model_of_keras_3_export_is_refused_with_what_to_save(tmp_path: Path) -> None:
    numbers = keras.Input((3,), name="x")
    model = keras.Model({"x": numbers}, keras.layers.Dense(2)(numbers))
    model.export(str(tmp_path / "export"), verbose=False)
    variables = tmp_path / "export" / "variables" / "variables"
    inputs = {"x": INPUTS["x"]}
    message = refusal(CheckpointError, lambda: keras.models.clone_model(model), variables, inputs)
    assert_says(message, "model.export()", "tf.train.Checkpoint(model=model)")


def nested(model: Any) -> Any:
    holder = tf.Module()
    holder.model = model
    return holder


def with_more(model: Any) -> Any:
    model.more = Block(**{f"v{number}": [2, 3] for number in range(7)})
    return model


ACCEPTED: dict[str, tuple[Save, Make, str, tuple[str, ...]]] = {
    "a path of dots": (
        lambda: {"saved": nested(Block(kernel=[2]))},
        lambda: Block(kernel=[2]),
        "saved.model",
        (),
    ),
    "layers of Keras 3, saved too": (
        lambda: {"model": called(Listed(saved=True))},
        lambda: Listed(saved=True),
        "model",
        (),
    ),
    "layer that only training calls": (
        lambda: {"model": trained(Stacked(3))},
        lambda: Stacked(3, unused=1),
        "model",
        (),
    ),
    "objects that the model lacks": (
        lambda: {"model": with_more(Block(bias=[2]))},
        lambda: Block(bias=[2]),
        "model",
        ("more.v0 [2, 3]", "2 more", "the model code lacks"),
    ),
}
"""As in `REFUSED`; the words are those of the plan's note."""


@pytest.mark.parametrize(("save", "make", "object_path", "words"), ACCEPTED.values(), ids=ACCEPTED)
def test_saved_model_is_planned_with_a_note_on_matrices_that_the_code_lacks(
    save: Save, make: Make, object_path: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    plan = planned(make, written(tmp_path, **save()), INPUTS, object_path=object_path)
    assert len(plan.also_stored) == bool(words)
    assert_says("".join(plan.also_stored), *words)


def test_layer_that_no_tower_calls_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "model.weights.h5"
    called(Stacked(3)).save_weights(file)
    plan = planned(lambda: Stacked(3, unused=1), file, INPUTS)
    assert_says("".join(plan.also_stored), "dense_2/vars/0 [3, 3]", "that no tower calls")


def by_names(width: int = 3, bias: bool = False) -> Any:
    """Returns code of TF1."""

    def model(inputs: Any) -> Any:
        with v1.variable_scope("dense"):
            rows = tf.gather(v1.get_variable("kernel", [20, width]), inputs["ids"])[:, :3]
            return rows + v1.get_variable("bias", [3]) if bias else rows

    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: by_names(4, bias=True), ("[20, 4]", "[20, 3]")), (by_names, ("bias [3]",))],
)
def test_code_of_tf1_that_is_not_the_saved_one_is_refused(
    make: Make, words: tuple[str, ...], tmp_path: Path
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        by_names(bias=True)({"ids": tf.constant([1], tf.int64)})
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    assert_says(refusal(CheckpointError, make, tmp_path / "model.ckpt", INPUTS), *words)
