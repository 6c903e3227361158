"""Ids that a model computes from numbers: the service reads the rows that the framework of its
training finds, whatever the number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import UsageError
from tests.differential.random_models.serving import response_to
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.movies_job import export, toml

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
)

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
MODEL = f"""
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
    shapes = {{name: jax.ShapeDtypeStruct(({ROWS}, 2), jnp.float32) for name in NAMES}}
    return shapes, {{"call": call}}
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
POWERS = [float(base**power) for base in (2, 10) for power in range(13)]
NUMBERS = np.array(
    [0, -1, 0.5, 3e10, -3e10, *POWERS, *(count**2 for count in range(2, 300, 7))], np.float32
)
HOSTILE = np.unique([NUMBERS, np.nextafter(NUMBERS, np.float32(0)), np.nextafter(NUMBERS, 9e9)])
"""Numbers around which libraries that compute the same formula find other steps."""
INTEGERS = np.clip(NUMBERS, -(2.0**31), 2.0**31 - 129).astype(np.int32)


def write_recipe(directory: Path, text: str, **sections: Any) -> Path:
    page = {
        "model": "random",
        "code": {"factory": "model.py:build", "table_threshold": 0} | sections.pop("code", {}),
        "output": {"root": "bundles"},
    } | sections
    (directory / "model.py").write_text(text)
    lines = [f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items()]
    (directory / "recipe.toml").write_text("".join(lines))
    return directory / "recipe.toml"


def vectors(directory: Path, columns: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Returns the vectors with which the service responds."""
    values = [column.tolist() for column in columns.values()]
    requests = [
        {"features": dict(zip(columns, example, strict=True))}
        for example in zip(*values, strict=True)
    ]
    body = {"tower": "query", "requests": requests}
    results = response_to(directory / "bundles", "embed", body)["results"]
    return np.array([result["vector"] for result in results], np.float32)


@pytest.mark.slow
def test_ids_of_jax_are_those_that_jax_computes(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(MODEL, namespace)
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    tables = {name: rows + 1000 * n for n, name in enumerate(namespace["NAMES"])}
    write_item(tmp_path / "checkpoint", {f"params.{name}": table for name, table in tables.items()})
    inputs = {"number": {"dtype": "float32"}, "integer": {"dtype": "int32"}}
    towers = {"query": {"role": "query", "call": "call"}}
    checkpoint = {"path": "checkpoint"}
    export(write_recipe(tmp_path, MODEL, checkpoint=checkpoint, inputs=inputs, towers=towers))
    columns = {"number": HOSTILE, "integer": np.resize(INTEGERS, HOSTILE.size)}
    expected = jax.jit(namespace["call"])(tables, columns)
    for first in range(0, HOSTILE.size, 200):
        part = {name: column[first : first + 200] for name, column in columns.items()}
        np.testing.assert_array_equal(vectors(tmp_path, part), expected[first : first + 200])


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
    namespace: dict[str, Any] = {}
    exec(KERAS, namespace)
    model = namespace["build"]()
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    model.table.set_weights([rows])
    model.save_weights(tmp_path / "model.weights.h5")
    recipe = write_recipe(
        tmp_path,
        KERAS,
        checkpoint={"path": "model.weights.h5"},
        code={} if trained_with is None else {"trained_with": trained_with},
        inputs={"number": {"dtype": "float32"}},
        towers={"query": {"role": "query"}},
    )
    if row is None:
        with pytest.raises(UsageError, match=r"row 299 .*code.trained_with"):
            export(recipe)
        return
    assert note in " ".join(export(recipe).notes)
    served = vectors(tmp_path, {"number": np.array([3e10, -1.0, 50.0], np.float32)})
    np.testing.assert_array_equal(served, rows[[row, 0, 5]])
