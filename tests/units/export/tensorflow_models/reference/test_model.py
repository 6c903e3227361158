"""A small reference model, restored from its checkpoint and run on examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.manifest import TextIds
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, NotConvertible
from export.front_end.calls import Call
from export.front_end.interface import ReferenceInputs, ReferenceRun
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts, TowerSpec
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.reference.model import TensorFlowReference
from tests.id_graphs import hash_ids
from tests.units.export.tensorflow_models.planning import assert_says
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import recipe

CODE = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.items = tf.Variable(tf.zeros([4, 2]))
        self.kernel = tf.Variable(tf.zeros([2]))

    def pair(self, inputs):
        rows = tf.gather(self.items, inputs["item"])
        halves = tf.cast(rows * self.kernel, tf.float16)
        return {"product": halves, "sum": tf.reduce_sum(rows * self.kernel, 1)}

    def ages(self, inputs):
        return inputs["age"] * tf.reduce_sum(self.kernel)

    @tf.function
    def checked(self, inputs):
        assert tf.executing_eagerly() and "CPU" in inputs["age"].device
        return inputs["age"]

    def raises(self, inputs):
        raise ValueError("no such\\n way " + "x" * 400)

    def rejects(self, inputs):
        raise ERROR


class Normalized(Model):
    def __init__(self):
        super().__init__()
        layers = tf.keras.layers
        self.scale = layers.Normalization(axis=None, mean=10.0, variance=4.0)

    def ages(self, inputs):
        return self.scale(inputs["age"])


class Averaged(Model):
    def __init__(self):
        super().__init__()
        self.words = tf.keras.layers.GlobalAveragePooling1D()

    def ages(self, inputs):
        rows = tf.zeros([tf.shape(inputs["age"])[0], 2, 1])
        mask = tf.zeros([tf.shape(inputs["age"])[0], 2], tf.bool)
        return self.words(rows, mask=mask)[:, 0]
"""
ROWS = np.array([[1, 10], [2, 20], [3, 30], [4, 40]], np.float32)
ITEMS = TableFacts("items", "items", 4, 2)
INPUTS = {"item": {"dtype": "int64"}, "age": {"dtype": "float32"}}
ITEM = embedded("item", "items")
AGE = dense("age", "float32", (), take="values")


def tower(name: str, call: str, *inputs: str, **paths: tuple[str, ...]) -> TowerSpec:
    return TowerSpec(name, "query", Call(call, inputs), paths or {"result": ()}, (), (), "result")


PAIR = tower("pair", "pair", "item", product=("product",), total=("sum",))
AGES = tower("ages", "ages", "age")


def job_of(folder: Path, factory: str = "Model", **checkpoint: Any) -> ExportJob:
    """Returns a recipe of the model in `folder`."""
    (folder / "model.py").write_text(CODE)
    sections = {"checkpoint": {"path": "ckpt", "by": "objects", **checkpoint}}
    towers = {"tower": {"role": "query"}}
    return recipe(f"model.py:{factory}", INPUTS, towers, sections)


def written(folder: Path, under: str = "") -> Path:
    """Writes a checkpoint whose kernel is 2 and 3, and returns its prefix."""
    model = tf.Module()
    model.items = tf.Variable(ROWS * 100)
    model.kernel = tf.Variable([2.0, 3.0])
    for step in reversed(under.split(".") if under else ()):
        holder = tf.Module()
        setattr(holder, step, model)
        model = holder
    return Path(tf.train.Checkpoint(model).write(str(folder / "ckpt")))


def run(
    folder: Path,
    *towers: TowerSpec,
    job: ExportJob | None = None,
    prefix: Path | None = None,
    features: tuple[FeatureSpec | DenseSpec, ...] = (ITEM, AGE),
    keyed: frozenset[str] = frozenset(),
    items: tuple[int, ...] = (3, 0, 9),
    expect_numbers: bool = False,
) -> ReferenceRun:
    """Runs the calls of towers on three examples."""
    job = job or job_of(folder)
    prefix = prefix or written(folder)
    spec = ModelSpec(
        {"items": ITEMS},
        {feature.name: feature for feature in features},
        {tower.name: tower for tower in towers},
    )

    def read_rows(table: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return ROWS[rows % 100]

    columns = {
        "item": Column(np.array(items)),
        "age": Column(np.array([1.0, 20.0, 30.0], np.float32)),
    }
    inputs = ReferenceInputs(3, columns, {}, read_rows, keyed)
    reference = TensorFlowReference(job, folder, open_checkpoint(prefix), prefix, spec)
    return reference.run(spec, inputs, expect_numbers)


@pytest.mark.parametrize("eagerly", [False, True])
def test_run_runs_compiled_functions_as_python_on_the_cpu(eagerly: bool, tmp_path: Path) -> None:
    tf.config.run_functions_eagerly(eagerly)
    try:
        results = run(tmp_path, tower("checked", "checked", "age"))
        assert tf.config.functions_run_eagerly() == eagerly
    finally:
        tf.config.run_functions_eagerly(False)
    assert results.results["checked"]["result"].tolist() == [1, 20, 30]


def test_run_of_a_call_that_raises_says_where(tmp_path: Path) -> None:
    line = CODE[: CODE.index("raise ValueError")].count("\n") + 1
    with pytest.raises(NotConvertible) as rejected:
        run(tmp_path, tower("raises", "raises", "age"))
    words = f"(model.py:{line})", "ValueError: no such way", "verify.examples"
    assert_says(str(rejected.value), "'raises'", *words)
    assert "x" * 400 not in str(rejected.value)


def test_run_of_a_checkpoint_that_tensorflow_cannot_read_is_rejected(tmp_path: Path) -> None:
    prefix = written(tmp_path)
    data = prefix.with_name("ckpt.data-00000-of-00001")
    content = data.read_bytes()
    kernel = content.index(np.array([2.0, 3.0], np.float32).tobytes())
    data.write_bytes(content[:kernel] + b"\xff" + content[kernel + 1 :])
    message = (
        rf"\Acheckpoint {prefix}: TensorFlow cannot restore the model: [^\n]*[Cc]hecksum[^\n]*\Z"
    )
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, AGES, prefix=prefix)


@pytest.mark.parametrize(
    "other_reader",
    [
        dense("age2", "float32", (), inputs=("age",), take="lengths"),
        dense("age2", "int32", (), inputs=("age",), take="values"),
        embedded("age2", "items", inputs=("age",)),
    ],
    ids=["lengths", "integers", "ids"],
)
def test_run_expects_no_numbers_of_inputs_that_are_read_otherwise(
    other_reader: FeatureSpec | DenseSpec, tmp_path: Path
) -> None:
    job = job_of(tmp_path, "Normalized")
    results = run(tmp_path, AGES, job=job, features=(AGE, other_reader), expect_numbers=True)
    assert results.expected_numbers == {}


WORDS = TextIds(split="whitespace", ids=hash_ids(4, "string"))


@pytest.mark.parametrize(
    ("kind", "zeros"), [({"kind": "bag", "combiner": "mean"}, True), ({"kind": "sequence"}, False)]
)
def test_run_gives_zeros_for_the_mean_of_no_words_if_a_tower_reads_one(
    kind: dict[str, Any], zeros: bool, tmp_path: Path
) -> None:
    length: dict[str, Any] = {"length": 3} if kind["kind"] == "sequence" else {}
    text = embedded("text", "items", ids=WORDS, **kind, **length)
    job = job_of(tmp_path, "Averaged")
    with np.errstate(invalid="ignore"):
        results = run(tmp_path, AGES, job=job, features=(text, AGE))
    values = results.results["ages"]["result"]
    assert (values == 0).all() if zeros else np.isnan(values).all()
