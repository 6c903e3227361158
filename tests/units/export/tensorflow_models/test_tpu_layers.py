"""Embedding layers that TensorFlow creates only on TPUs, exported on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.graphs.loading import tf
from tests.units.export.job_runs import publish
from tests.units.export.traced_models import IDS, MODELS, RAGGED, save_checkpoint, tower_recipe

INPUTS: dict[str, Any] = {
    "item": IDS,
    "bag": RAGGED,
    "weights": {"dtype": "float32", "kind": "ragged", "weights_for": "bag"},
    "recent": RAGGED,
}


@pytest.mark.parametrize("function", ["build_v0", pytest.param("build_v2", marks=pytest.mark.slow)])
def test_layer_of_tpus_reads_what_the_layer_for_serving_saved(
    function: str, tmp_path: Path
) -> None:
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    weights = tf.cast(bag, tf.float32)
    features = {"item": tf.constant([1, 2], tf.int64), "bag": bag, "recent": bag}
    serving = tower_recipe("mid_level.py:build_serving", INPUTS)
    prefix = save_checkpoint(serving, tmp_path, inputs={**features, "weights": weights})
    job = tower_recipe(
        f"mid_level.py:{function}",
        INPUTS,
        code={"table_threshold": 0},
        checkpoint={"path": str(prefix), "object_path": "model"},
        output={"root": str(tmp_path)},
    )
    manifest = publish(job.model_dump(exclude_unset=True), MODELS).manifest
    assert manifest.features.keys() >= {"item", "bag", "recent"}
