"""Embedding layers that TensorFlow creates only on TPUs, exported on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from export.graphs.loading import tf
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.parity_checks import check_parity
from tests.units.export.traced_models import IDS, MODELS, RAGGED, save_and_trace, tower_recipe

INPUTS: dict[str, Any] = {
    "item": IDS,
    "bag": RAGGED,
    "weights": {"dtype": "float32", "kind": "ragged", "weights_for": "bag"},
    "recent": RAGGED,
}


@pytest.mark.parametrize("function", ["build_v0", pytest.param("build_v2", marks=pytest.mark.slow)])
def test_layer_of_tpus_gives_what_the_layer_for_serving_gives(
    function: str, tmp_path: Path
) -> None:
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    features = {
        "item": tf.constant([1, 2], tf.int64),
        "bag": bag,
        "recent": bag,
        "weights": tf.cast(bag, tf.float32),
    }
    job = tower_recipe("mid_level.py:build_serving", INPUTS)
    checkpoint = save_and_trace(job, tmp_path, features)
    job = tower_recipe(f"mid_level.py:{function}", INPUTS)
    traced = dataclasses.replace(checkpoint, job=job, model=trace_towers(job, MODELS))
    check_parity(traced, tmp_path)
