"""Looked-up ids that a tower reads as numbers, as in the mask of an attention layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.format.manifest import HashIds
from export.front_end.specs import FeatureSpec
from export.graphs.loading import tf
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.compiled import why_not_compiled
from export.towers.prepared_towers import arrange_towers
from export.verify.examples import Examples
from tests.export.parity_checks import check_parity, check_self_contained
from tests.export.traced_models import (
    IDS,
    MODELS,
    TracedCheckpoint,
    recipe,
    save_and_trace,
    tower_recipe,
)

LENGTH = 6
INPUTS: dict[str, Any] = {"history": {**IDS, "shape": [LENGTH]}, "item": IDS}


@pytest.fixture(
    scope="module",
    params=[
        "2_mask_zero",
        pytest.param("2_attention_mask", marks=pytest.mark.slow),
        pytest.param("3_mask_zero", marks=pytest.mark.slow),
        "3_attention_mask",
    ],
)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TracedCheckpoint:
    factory = f"attention_over_lookups.py:build_{request.param}"
    sections = {
        "code": {"factory": factory, "table_threshold": 0},
        "features": {"item": {"role": "candidate"}},
    }
    job = recipe(factory, INPUTS, {"tower": {"role": "ranking"}}, sections)
    called = {"history": tf.zeros([2, LENGTH], tf.int64), "item": tf.zeros([2], tf.int64)}
    return save_and_trace(job, tmp_path_factory.mktemp(request.param), called)


def test_mask_of_looked_up_ids_is_computed_by_the_service_and_the_tower_compiles(
    made: TracedCheckpoint, tmp_path: Path
) -> None:
    numbers = made.model.spec.features["history@indicator"]
    assert isinstance(numbers, FeatureSpec)
    assert (numbers.entry.ordinal, numbers.entry.length) == (True, LENGTH)
    assert set(made.model.spec.features) == {"history@movies", "history@indicator", "item"}

    _, splits = arrange_towers(made.partitioned, made.job, made.features)
    assert splits["tower"].parts

    random = np.random.default_rng(4)
    history = np.where(random.random((40, LENGTH)) < 0.4, 0, random.integers(95, 165, (40, LENGTH)))
    history[:, 0] = 100  # Attention to nothing but padding is not a number in every library.
    columns = {
        "history": Column(history.ravel(), np.arange(0, 40 * LENGTH + 1, LENGTH)),
        "item": Column(random.integers(95, 165, 40)),
    }
    check_parity(made, tmp_path, Examples(40, columns))


@pytest.mark.slow
def test_mask_of_looked_up_ids_is_computed_in_a_self_contained_saved_model(
    made: TracedCheckpoint, tmp_path: Path
) -> None:
    check_self_contained(made, tmp_path)


def test_hashes_that_a_tower_reads_as_numbers_are_computed_by_the_service(tmp_path: Path) -> None:
    job = tower_recipe("attention_over_lookups.py:build_hashed_numbers", {"item": IDS})
    made = save_and_trace(job, tmp_path)
    (numbers,) = made.model.spec.features.values()
    assert isinstance(numbers, FeatureSpec)
    assert (numbers.entry.ordinal, numbers.rule) == (True, HashIds(buckets=10))
    check_parity(made, tmp_path)


def test_tower_with_a_table_that_no_rule_describes_names_the_line_and_a_remedy() -> None:
    job = tower_recipe("attention_over_lookups.py:build_numbers", {"item": IDS})
    traced = trace_towers(job, MODELS)

    reason = why_not_compiled(traced.towers[0])

    assert "LookupTableFindV2 (attention_over_lookups.py:" in reason
    assert "pass the result to the model as an input" in reason
    assert "HashTableV2" not in reason
