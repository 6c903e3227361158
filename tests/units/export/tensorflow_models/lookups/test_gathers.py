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
from export.front_end.specs import DenseSpec, FeatureSpec
from export.graphs.loading import tf
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.parity_checks import check_parity
from tests.units.export.traced_models import (
    MODELS,
    TracedCheckpoint,
    one_table_recipe,
    save_and_trace,
    tower_recipe,
)

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
    single_ids = tf.constant([1, 2], tf.int64)
    return {
        "item": single_ids,
        "other": single_ids,
        "recent": tf.ones([2, 3], tf.int64),
        "hour": single_ids,
        "tags": bag,
        "words": sparse,
        "word_weights": tf.SparseTensor(sparse.indices, tf.ones([3]), sparse.dense_shape),
        "age": tf.constant([1.0, 2.0]),
    }


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> TracedCheckpoint:
    outputs = {"vector": "vector", "score": "score"}
    job = tower_recipe("lookups.py:build_everything", EVERYTHING, outputs)
    return save_and_trace(job, tmp_path_factory.mktemp("everything"), example_inputs())


def test_every_kind_of_gather_becomes_features(everything: TracedCheckpoint) -> None:
    features = everything.model.spec.features
    facts = {
        name: (spec.entry.table, spec.entry.kind, spec.entry.combiner)
        if isinstance(spec, FeatureSpec)
        else (spec.reads[0], spec.entry.take)
        for name, spec in features.items()
    }
    assert facts == {
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
    features = {"item": tf.constant([[1.0]]), "recent": tf.ones([1, 3], tf.int32)}
    checkpoint = save_and_trace(
        tower_recipe("lookups.py:build_keras_2", inputs), tmp_path, features
    )
    assert set(checkpoint.model.spec.tables) == {"items"}
    assert isinstance(checkpoint.model.spec.features["recent@values"], DenseSpec)
    check_parity(checkpoint, tmp_path)
    assert np.unique(checkpoint.examples().columns["recent"].values).size > 10


@pytest.mark.slow
def test_tables_of_billions_of_rows_are_traced_in_less_than_a_gigabyte() -> None:
    program = f"""
import json, re, sys
sys.path.insert(0, {str(MODELS.parents[1])!r})
from tests.units.export.tensorflow_models.lookups.test_gathers import EVERYTHING
from tests.units.export.traced_models import MODELS, one_table_recipe, tower_recipe
from export.tensorflow_models.model.tracing import trace_towers
recipe = tower_recipe("lookups.py:build_everything_huge", EVERYTHING, {{"vector": "vector"}})
traced = trace_towers(recipe, MODELS)
layer = trace_towers(one_table_recipe("build_huge"), MODELS)
rows = [table.rows for model in (traced, layer) for table in model.spec.tables.values()]
# Not ru_maxrss, which knows the process that this one was forked from, too.
peak = int(re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1]) << 10
print(json.dumps({{"rows": rows, "peak": peak}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["rows"] == [2_000_000_000] * 5 + [1_000_000_000]
    assert output["peak"] < 1 << 30


def test_tied_weights_stay_inside_with_a_note_of_the_reason(tmp_path: Path) -> None:
    inputs = {"item": tf.constant([1], tf.int64)}
    checkpoint = save_and_trace(one_table_recipe("build_tied"), tmp_path, inputs)
    assert not checkpoint.model.spec.tables
    (note,) = checkpoint.model.notes
    assert re.fullmatch(
        r"table 'items' of 20000 rows \(312.5 KiB\) stays inside the towers: tower 'tower' reads "
        r"it by operation .* "
        r"\(MatMul\) \(one_table.py:\d+\); to take it out, read it by lookups only",
        note,
    )
    check_parity(checkpoint, tmp_path)


def test_tied_weights_beyond_the_limit_are_rejected() -> None:
    with pytest.raises(
        NotConvertible, match=r"MatMul\) \(one_table.py:\d+\), and is larger than code.inline"
    ):
        trace_towers(one_table_recipe("build_tied_huge"), MODELS)


def test_table_that_is_looked_up_in_a_condition_is_checked_against_the_limit() -> None:
    traced = trace_towers(one_table_recipe("build_hidden"), MODELS)
    assert not traced.spec.tables
    (note,) = traced.notes
    assert re.search(
        r"\[20000, 4\] .*312.5 KiB.* \(If\) \(one_table.py:\d+\).*outside of tf.cond, "
        r"tf.map_fn",
        note,
    )
    limited = tower_recipe(
        "one_table.py:build_hidden", {"item": ID}, code={"inline_bytes_max": 1000}
    )
    with pytest.raises(
        NotConvertible,
        match=r"variable '.*' \[20000, 4\] .* reads it by operation .* \(If\) \(one_tab",
    ):
        trace_towers(limited, MODELS)


@pytest.mark.parametrize("function", ["build_hidden", "build_tied"])
@pytest.mark.parametrize(("threshold", "notes"), [(19_999, 1), (20_000, 0)])
def test_table_that_stays_is_noted_if_it_has_more_rows_than_the_threshold(
    function: str, threshold: int, notes: int
) -> None:
    job = tower_recipe(
        f"one_table.py:{function}", {"item": ID}, code={"table_threshold": threshold}
    )
    assert len(trace_towers(job, MODELS).notes) == notes


def test_partial_tpu_embedding_tables_of_both_kinds_are_extracted(tmp_path: Path) -> None:
    single_ids = tf.constant([1], tf.int64)
    inputs = {"small": ID, "large": {"dtype": "int64", "kind": "ragged"}}
    features = {"small": single_ids, "large": tf.ragged.constant([[1, 2]], dtype=tf.int64)}
    job = tower_recipe("lookups.py:build_partial", inputs, code={"table_threshold": 10})
    checkpoint = save_and_trace(job, tmp_path, features)
    assert {name: table.rows for name, table in checkpoint.model.spec.tables.items()} == {
        "embedding.small": 100,
        "large": 101,
    }
    check_parity(checkpoint, tmp_path)
    ragged = tower_recipe("lookups.py:build_partial", {**inputs, "small": inputs["large"]})
    with pytest.raises(
        NotConvertible, match=r"Only tf\.Tensor input is supported for Keras embedding"
    ):
        trace_towers(ragged, MODELS)
