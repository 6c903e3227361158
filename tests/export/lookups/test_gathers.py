from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.frameworks.loading import tf
from export.graph.specs import DenseSpec, FeatureSpec
from export.model.tracing import trace_towers
from tests.export.lookups.parity_checks import HERE, check_parity, recipe, train_and_trace
from tests.export.traced_models import TracedCheckpoint

ID = {"dtype": "int64"}
EVERYTHING = {
    "item": ID,
    "other": ID,
    "recent": {"dtype": "int64", "shape": [3]},
    "hour": ID,
    "tags": {"dtype": "int64", "kind": "ragged"},
    "words": {"dtype": "int64", "kind": "sparse"},
    "word_weights": {"dtype": "float32", "kind": "sparse", "weights_for": "words"},
    "age": {"dtype": "float32"},
}


def example_inputs() -> dict[str, Any]:
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    sparse = bag.to_sparse()
    one = tf.constant([1, 2], tf.int64)
    return {
        "item": one,
        "other": one,
        "recent": tf.ones([2, 3], tf.int64),
        "hour": one,
        "tags": bag,
        "words": sparse,
        "word_weights": tf.SparseTensor(sparse.indices, tf.ones([3]), sparse.dense_shape),
        "age": tf.constant([1.0, 2.0]),
    }


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> TracedCheckpoint:
    job = recipe("build_everything", EVERYTHING, {"vector": "vector", "score": "score"})
    return train_and_trace(job, example_inputs(), tmp_path_factory.mktemp("everything"))


def test_every_kind_of_gather_becomes_features(everything: TracedCheckpoint) -> None:
    features = everything.model.spec.features
    told = {
        name: (spec.table, spec.kind, spec.combiner)
        if isinstance(spec, FeatureSpec)
        else (spec.reads[0], spec.take)
        for name, spec in features.items()
    }
    assert told == {
        "item@items": ("items", "single", None),
        "recent@items": ("items", "sequence", None),
        "item@wide": ("wide", "single", None),
        "tags@tags": ("tags", "bag", "mean"),
        "words": ("words", "bag", "sqrtn"),
        "item@tags": ("tags", "single", None),
        "item@pairs": ("pairs", "single", None),
        "other": ("pairs", "single", None),
        "recent@values": ("recent", "values"),
        "hour": ("hour", "values"),
        "tags@lengths": ("tags", "lengths"),
        "age": ("age", "values"),
    }
    assert everything.model.spec.inputs.keys() == {
        "item",
        "other",
        "recent",
        "hour",
        "tags",
        "words",
        "age",
    }
    assert everything.model.notes == ()


def test_small_tables_and_positions_stay_inside(everything: TracedCheckpoint) -> None:
    shapes = {tuple(variable.shape) for variable in everything.model.towers[0].variables}
    assert {(50, 3), (3, 4)} < shapes
    assert not any(rows == 20_000 for rows, *_ in shapes)


def test_towers_of_gathers_equal_the_original(everything: TracedCheckpoint, tmp_path: Path) -> None:
    tower = check_parity(everything, tmp_path)["tower"]
    assert [form.kind for form in tower.forms] == ["saved_model", "litert"]


def test_functional_model_with_masks_and_float_ids_equals_the_original(tmp_path: Path) -> None:
    inputs = {
        "item": {"dtype": "float32", "shape": [1]},
        "recent": {"dtype": "int32", "shape": [3]},
    }
    given = {"item": tf.constant([[1.0]]), "recent": tf.ones([1, 3], tf.int32)}
    made = train_and_trace(recipe("build_keras_2", inputs), given, tmp_path)
    assert set(made.model.spec.tables) == {"items"}
    assert isinstance(made.model.spec.features["recent@values"], DenseSpec)
    check_parity(made, tmp_path)
    assert np.unique(made.examples().columns["recent"].values).size > 10


@pytest.mark.slow
def test_tables_of_billions_of_rows_are_traced_in_less_than_a_gigabyte() -> None:
    program = f"""
import json, re, sys
sys.path.insert(0, {str(HERE.parents[2])!r})
from tests.export import traced_models
from tests.export.lookups.parity_checks import HERE, recipe
from tests.export.lookups.test_gathers import EVERYTHING
from export.model.tracing import trace_towers
traced = trace_towers(recipe("build_everything_huge", EVERYTHING, {{"vector": "vector"}}), HERE)
layer = trace_towers(traced_models.one_recipe("build_huge"), traced_models.HERE)
rows = [table.rows for model in (traced, layer) for table in model.spec.tables.values()]
# Not ru_maxrss, which knows the process that this one was forked from, too.
peak = int(re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1]) << 10
print(json.dumps({{"rows": rows, "peak": peak}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rows"] == [2_000_000_000] * 5 + [1_000_000_000]
    assert told["peak"] < 1 << 30


def test_tied_weights_stay_inside_and_the_plan_says_why(tmp_path: Path) -> None:
    made = train_and_trace(
        recipe("build_tied", {"item": ID}), {"item": tf.constant([1], tf.int64)}, tmp_path
    )
    assert not made.model.spec.tables
    (note,) = made.model.notes
    assert re.fullmatch(
        r"table 'items' of 20000 rows \(312.5 KiB\) stays inside the towers: tower 'tower' reads it by operation .* "
        r"\(MatMul\) \(gather_models.py:\d+\); to take it out, read it by lookups only",
        note,
    )
    check_parity(made, tmp_path)


def test_tied_weights_beyond_the_limit_are_refused() -> None:
    with pytest.raises(
        NotConvertible, match=r"MatMul\) \(gather_models.py:\d+\), and is larger than code.inline"
    ):
        trace_towers(recipe("build_tied_huge", {"item": ID}), HERE)


def test_table_that_is_looked_up_in_a_condition_is_checked_against_the_limit() -> None:
    traced = trace_towers(recipe("build_hidden", {"item": ID}), HERE)
    assert not traced.spec.tables
    (note,) = traced.notes
    assert re.search(
        r"\[20000, 4\] .*312.5 KiB.* \(If\) \(gather_models.py:\d+\).*outside of tf.cond, tf.map_fn",
        note,
    )
    with pytest.raises(
        NotConvertible,
        match=r"variable '.*' \[20000, 4\] .* reads it by operation .* \(If\) \(gather_mo",
    ):
        trace_towers(recipe("build_hidden", {"item": ID}, code={"inline_bytes_max": 1000}), HERE)


def test_partial_tpu_embedding_tables_of_both_kinds_are_extracted(tmp_path: Path) -> None:
    one = tf.constant([1], tf.int64)
    inputs = {"small": ID, "large": {"dtype": "int64", "kind": "ragged"}}
    given = {"small": one, "large": tf.ragged.constant([[1, 2]], dtype=tf.int64)}
    job = recipe("build_partial", inputs, code={"table_threshold": 10})
    made = train_and_trace(job, given, tmp_path)
    assert {name: table.rows for name, table in made.model.spec.tables.items()} == {
        "embedding.small": 100,
        "large": 101,
    }
    check_parity(made, tmp_path)
    with pytest.raises(
        NotConvertible, match=r"Only tf\.Tensor input is supported for Keras embedding"
    ):
        trace_towers(recipe("build_partial", {**inputs, "small": inputs["large"]}), HERE)
