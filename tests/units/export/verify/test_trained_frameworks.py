"""Computed ids are those of the framework that trained the model, whatever the number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.sources import RemoteRows, RemoteTable
from export.checkpoint.reader import open_checkpoint
from export.errors import UsageError
from export.front_end.interface import PartitionedModel
from export.front_end.manifest_features import describe_features
from export.front_end.specs import FeatureSpec
from export.jax_models.front_end import JaxFrontEnd
from export.jax_models.keras_trainer import KerasTrainer
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.tracing import trace_towers
from export.verify.hostile_numbers import hostile_numbers
from export.verify.own_rows import check_own_rows
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.traced_models import recipe

jax = pytest.importorskip("jax")

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
INPUTS = {"number": {"dtype": "float32"}, "integer": {"dtype": "int32"}}
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


def bundle_rows(model: PartitionedModel, job: ExportJob, columns: dict[str, Any]) -> Any:
    """Returns the rows that a service finds, by the table that they are rows of."""
    tables = {
        name: RemoteTable(table.rows, RemoteRows(name, table.dim))
        for name, table in model.spec.tables.items()
    }
    features = FeatureReader(describe_features(model.spec, job), tables, {})
    rows = {}
    for name, spec in model.spec.features.items():
        if not isinstance(spec, FeatureSpec):
            continue
        read_columns = {key: Column(columns[key]) for key in spec.reads}
        values = columns[spec.reads[0]]
        rows[spec.entry.table] = features.rows(name, read_columns, len(values))[0]
    return rows


def test_ids_of_jax_are_those_that_jax_computes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    namespace: dict[str, Any] = {}
    exec(MODEL, namespace)
    zeros = {f"params.{name}": np.zeros((ROWS, 2), np.float32) for name in namespace["NAMES"]}
    write_item(tmp_path / "checkpoint", zeros)
    code = {"factory": "model.py:build", "table_threshold": 0}
    sections = {"code": code, "checkpoint": {"path": "checkpoint"}}
    towers = {"call": {"role": "query", "call": "call"}}
    job = recipe("model.py:build", INPUTS, towers, sections)
    model = JaxFrontEnd().partition(job, tmp_path, open_checkpoint(tmp_path / "checkpoint"))
    checked = check_own_rows(job, model, describe_features(model.spec, job))

    columns = {
        "number": hostile_numbers("float32"),
        "integer": hostile_numbers("int32").astype(np.int64),
    }
    rows = bundle_rows(checked, job, columns)
    assert rows.keys() == set(namespace["NAMES"])
    inputs = {"number": columns["number"], "integer": columns["integer"].astype(np.int32)}
    for name in namespace["NAMES"]:
        expected = jax.jit(namespace["ids_of"], static_argnums=1)(inputs, name)
        np.testing.assert_array_equal(rows[name], expected, name)


@pytest.mark.parametrize(
    ("trained_with", "row", "note"),
    [
        ("tensorflow", 0, ""),
        ("jax", ROWS - 1, "the rows of number are those that JAX computes"),
        ("torch", 0, "Keras ran on PyTorch in training"),
        (None, None, ""),
    ],
)
def test_ids_of_keras_are_those_of_the_backend_that_trained(
    trained_with: str | None, row: int | None, note: str, tmp_path: Path
) -> None:
    pytest.importorskip("keras")
    (tmp_path / "model.py").write_text(KERAS)
    code = {"factory": "model.py:build", "trained_with": trained_with}
    inputs = {"number": INPUTS["number"]}
    job = recipe("model.py:build", inputs, {"query": {"role": "query"}}, {"code": code})
    traced = trace_towers(job, tmp_path)
    (table,) = traced.spec.tables.values()
    trainer = None
    if trained_with != "tensorflow":
        trainer = KerasTrainer(job, tmp_path, {0: table.config_name})
    original: Any = None
    model = PartitionedModel(traced.spec, traced.towers, original, traced.own_rows, trainer)
    entries = describe_features(traced.spec, job)
    if row is None:
        with pytest.raises(UsageError, match=r"JAX reads row 299 .*code.trained_with"):
            check_own_rows(job, model, entries)
        return

    checked = check_own_rows(job, model, entries)
    assert note in " ".join(checked.notes)
    rows = bundle_rows(checked, job, {"number": np.array([3e10, -1.0, 50.0], np.float32)})
    assert rows["table"].tolist() == [row, 0, 5]
