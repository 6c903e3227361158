"""Ids that a model computes from numbers: the service reads the rows that the framework of its
training finds, whatever the number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from tests.differential.written_models import OF_TENSORFLOW, write_model
from tests.units.export.checkpoint.orbax_trees import write_item

jax = pytest.importorskip("jax")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
    ),
]

ROWS = 300
STEPS = {
    "log2": "jnp.floor(jnp.log2(jnp.maximum(x, 1.0)))",
    "log10": "jnp.log10(jnp.maximum(x, 1.0))",
    "ln_by_ln": "jnp.log(jnp.maximum(x, 1.0)) / jnp.log(2.0)",
    "log1p": "jnp.log1p(jnp.maximum(x, 0.0)) * 10",
    "tanh": "(jnp.tanh(x / 1e4) + 1) * 40",
    "root": "jnp.sqrt(jnp.abs(x))",
    "cast": "x * 0.1",
    "rounded": "jnp.round(x)",
    "squared_log": "jnp.log(jnp.maximum(x, 1.0)) ** 2",
}
JAX = f"""
import jax
import jax.numpy as jnp

STEPS = {{{", ".join(f"{name!r}: lambda x: {code}" for name, code in STEPS.items())}}}
NAMES = [step + "_" + name for step in STEPS for name in ("number", "integer")]


def ids_of(inputs, name):
    step, _, source = name.rpartition("_")
    x = inputs[source].astype(jnp.float32)
    return jnp.clip(STEPS[step](x).astype(jnp.int32), 0, {ROWS - 1})


def call(parameters, inputs):
    return jnp.concatenate([parameters[name][ids_of(inputs, name)] for name in NAMES], axis=-1)


def build():
    return {{name: jax.ShapeDtypeStruct(({ROWS}, 2), jnp.float32) for name in NAMES}}, call
"""
KERAS = f"""
import keras


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding({ROWS}, 2, name="table")

    def call(self, inputs):
        ids = keras.ops.cast(inputs["number"] * 0.1, "int32")
        return self.table(keras.ops.clip(ids, 0, {ROWS - 1}))


def build():
    model = Net()
    model({{"number": keras.ops.zeros((1,))}})
    return model
"""
TENSORFLOW = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.tables = [tf.Variable(tf.zeros([50, 4]), name=f"table_{n}") for n in range(3)]

    @tf.function
    def __call__(self, inputs):
        count = tf.cast(tf.maximum(inputs["count"], 1), tf.float32)
        quotients = [
            tf.math.log(count) / tf.math.log(2.0),
            tf.math.log(count) / tf.math.log(10.0),
            count / 0.1,
        ]
        ids = [tf.cast(tf.minimum(tf.floor(quotient), 49.0), tf.int32) for quotient in quotients]
        rows = [tf.gather(table, row) for table, row in zip(self.tables, ids)]
        return tf.concat(rows, axis=1)


def build():
    return Model()
"""
POWERS = [float(base**power) for base in (2, 10) for power in range(13)]
NUMBERS = np.array(
    [0, -1, 0.5, 3e10, -3e10, *POWERS, *(count**2 for count in range(2, 300, 7))], np.float32
)
HOSTILE = np.unique([NUMBERS, np.nextafter(NUMBERS, np.float32(0)), np.nextafter(NUMBERS, 9e9)])
"""Numbers around which libraries that compute the same formula find other steps."""
INTEGERS = np.clip(NUMBERS, -(2.0**31), 2.0**31 - 129).astype(np.int32)
QUERY = {"query": {"role": "query", "precisions": []}}
COUNTS = [0, 1, 2, 3, 4, 5, 9, 99, 8191, 8192, 1 << 27, *(10**power for power in range(1, 19))]


def test_ids_of_jax_are_those_that_jax_computes(tmp_path: Path) -> None:
    model = write_model(tmp_path, JAX)
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    tables = {name: rows + 1000 * n for n, name in enumerate(model.names["NAMES"])}
    write_item(tmp_path / "checkpoint", {f"params.{name}": table for name, table in tables.items()})
    inputs = {"number": {"dtype": "float32"}, "integer": {"dtype": "int32"}}
    model.write_recipe(inputs=inputs, towers=QUERY)
    model.export()
    columns = {"number": HOSTILE, "integer": np.resize(INTEGERS, HOSTILE.size)}
    expected = jax.jit(model.names["call"])(tables, columns)
    np.testing.assert_array_equal(model.served(columns), expected)


@pytest.mark.parametrize(
    ("trained_with", "row", "note"),
    [
        ("tensorflow", 0, ""),
        ("jax", ROWS - 1, "those that JAX computes"),
        ("torch", 0, "Keras ran on PyTorch"),
        (None, None, ""),
    ],
)
def test_ids_of_keras_are_those_of_the_backend_that_trained(
    trained_with: str | None, row: int | None, note: str, tmp_path: Path
) -> None:
    """The backends cast a number beyond int32 to different integers."""
    pytest.importorskip("keras")
    model = write_model(tmp_path, KERAS)
    network = model.names["build"]()
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    network.table.set_weights([rows])
    network.save_weights(tmp_path / "model.weights.h5")
    code: dict[str, Any] = {} if trained_with is None else {"trained_with": trained_with}
    model.write_recipe(
        checkpoint={"path": "model.weights.h5"},
        code=code,
        inputs={"number": {"dtype": "float32"}},
        towers=QUERY,
    )
    if row is None:
        with pytest.raises(UsageError, match=r"row 299 .*code.trained_with"):
            model.export()
        return
    assert note in " ".join(model.export().notes)
    served = model.served({"number": np.array([3e10, -1.0, 50.0], np.float32)})
    np.testing.assert_array_equal(served, rows[[row, 0, 5]])


def test_rows_of_quotients_are_those_of_the_graph_of_tensorflow(tmp_path: Path) -> None:
    """Eagerly, TensorFlow finds another row for some of the numbers."""
    tf = load_tensorflow()
    model = write_model(tmp_path, TENSORFLOW)
    network = model.names["build"]()
    for seed, table in enumerate(network.tables):
        table.assign(np.random.default_rng(seed).normal(size=(50, 4)))
    tf.train.Checkpoint(model=network).write(str(tmp_path / "checkpoint" / "model"))
    model.write_recipe(
        checkpoint=OF_TENSORFLOW,
        inputs={"count": {"dtype": "int64"}},
        towers=QUERY,
        verify=model.write_examples({"count": COUNTS}),
    )
    model.export()
    # TensorFlow computes the last examples of a batch by other instructions.
    batch = tf.constant(COUNTS * 64, tf.int64)
    expected = network({"count": batch}).numpy()[: len(COUNTS)]
    np.testing.assert_array_equal(model.served({"count": COUNTS}), expected)
