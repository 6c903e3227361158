from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from export.front_end.specs import FeatureSpec
from export.graphs.loading import tf
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.parity_checks import check_parity, check_self_contained
from tests.units.export.traced_models import MODELS, TracedCheckpoint, save_and_trace, tower_recipe

ID = {"dtype": "int64"}
RAGGED = {"dtype": "int64", "kind": "ragged"}
MID_LEVEL = {
    "item": ID,
    "bag": RAGGED,
    "weights": {"dtype": "float32", "kind": "ragged", "weights_for": "bag"},
    "recent": RAGGED,
}
KEYS = {"items": "model/layer/items/.ATTRIBUTES/VARIABLE_VALUE"}


def mid_level_inputs() -> dict[str, Any]:
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    return {
        "item": tf.constant([1, 2], tf.int64),
        "bag": bag,
        "recent": bag,
        "weights": tf.cast(bag, tf.float32),
    }


def kinds(checkpoint: TracedCheckpoint) -> dict[str, tuple[str, str, int | None, str | None]]:
    entries = {
        name: spec.entry
        for name, spec in checkpoint.model.spec.features.items()
        if isinstance(spec, FeatureSpec)
    }
    return {
        name: (entry.table, entry.kind, entry.length, entry.combiner)
        for name, entry in entries.items()
    }


@pytest.mark.parametrize("function", ["build_serving", "build_v0", "build_v2"])
def test_mid_level_layer_of_each_generation_equals_the_original(
    function: str, tmp_path: Path
) -> None:
    # What was trained on TPUs is served by another program: V0 and V2 cannot be without TPUs, but
    # their tables can.
    job = tower_recipe("mid_level.py:build_serving", MID_LEVEL)
    checkpoint = save_and_trace(job, tmp_path, mid_level_inputs())
    assert checkpoint.keys == KEYS
    if function != "build_serving":
        job = tower_recipe(f"mid_level.py:{function}", MID_LEVEL)
        checkpoint = dataclasses.replace(checkpoint, job=job, model=trace_towers(job, MODELS))
    assert kinds(checkpoint) == {
        "item": ("items", "single", None, None),
        "bag": ("items", "bag", None, "mean"),
        "recent": ("items", "sequence", 2, None),
    }
    check_parity(checkpoint, tmp_path)


def test_distributed_embedding_of_keras_rs_equals_the_original(tmp_path: Path) -> None:
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    features = {
        "item": tf.constant([[1], [2]], tf.int64),
        "recent": tf.ones([2, 3], tf.int64),
        "tags": bag,
        "words": bag.to_sparse(),
    }
    inputs = {
        "item": {**ID, "shape": [1]},
        "recent": {**ID, "shape": [3]},
        "tags": RAGGED,
        "words": {**ID, "kind": "sparse"},
    }
    # TensorFlow's checkpoints of Keras 3 leave out layers in dicts: the training script saves them
    # beside the model.
    keys = {
        f"embedding.{name}": {"key": f"{name}/.ATTRIBUTES/VARIABLE_VALUE"}
        for name in ("items", "tags")
    }
    job = tower_recipe("lookups.py:build_keras_rs", inputs, tables=keys)

    def tables(model: Any) -> dict[str, Any]:
        return {layer.name: layer.embeddings.value for layer in model.embedding._layers}

    checkpoint = save_and_trace(job, tmp_path, features, attributes=tables)
    assert kinds(checkpoint) == {
        "item": ("embedding.items", "single", None, None),
        "recent": ("embedding.items", "sequence", 3, None),
        "tags": ("embedding.tags", "bag", None, "sqrtn"),
        "words": ("embedding.tags", "bag", None, "sqrtn"),
    }
    check_parity(checkpoint, tmp_path)
    assert set(check_self_contained(checkpoint, tmp_path)["tables"]) == {
        "embedding.items",
        "embedding.tags",
    }


@pytest.mark.parametrize("call", ["placed", pytest.param("twice", marks=pytest.mark.slow)])
def test_inputs_with_several_positions_or_readers_are_read_unchanged(
    call: str, tmp_path: Path
) -> None:
    inputs: dict[str, Any] = MID_LEVEL | (
        {"item": {**ID, "shape": [2]}} if call == "placed" else {}
    )
    job = tower_recipe(
        "mid_level.py:build_serving", inputs, towers={"tower": {"role": "query", "call": call}}
    )
    checkpoint = save_and_trace(job, tmp_path, mid_level_inputs())
    report = check_self_contained(checkpoint, tmp_path)
    assert set(report["tables"]) == {"items"}
    assert ("recent" in report["signatures"]["tower"]["inputs"]) == (call == "placed")
