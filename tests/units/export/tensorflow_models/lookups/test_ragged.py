from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible
from export.front_end.specs import FeatureSpec
from export.graphs.loading import tf
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.parity_checks import check_parity, check_self_contained
from tests.units.export.traced_models import MODELS, save_and_trace, tower_recipe

RAGGED = {"dtype": "int64", "kind": "ragged"}
INPUTS = {"bag": RAGGED, "recent": RAGGED}
HASHED = {"bag": {"ids": {"kind": "hash", "dtype": "string"}}}


def bags() -> dict[str, Any]:
    return dict.fromkeys(INPUTS, tf.ragged.constant([[1, 2], [3]], dtype="int64"))


@pytest.mark.parametrize(
    "features", [pytest.param({}, marks=pytest.mark.slow), HASHED], ids=["rows", "hashed"]
)
def test_ragged_ids_that_are_made_dense_become_bags_and_sequences(
    features: dict[str, Any], tmp_path: Path
) -> None:
    job = tower_recipe("lookups.py:build_ragged", INPUTS, features=features)
    checkpoint = save_and_trace(job, tmp_path, bags())
    entries = {
        name: spec.entry
        for name, spec in checkpoint.model.spec.features.items()
        if isinstance(spec, FeatureSpec)
    }
    assert {
        name: (entry.kind, entry.combiner, entry.length) for name, entry in entries.items()
    } == {
        "bag@items": ("bag", "mean", None),
        "bag@items.sum": ("bag", "sum", None),
        "recent": ("sequence", None, 3),
    }
    check_parity(checkpoint, tmp_path)
    signature = check_self_contained(checkpoint, tmp_path)["signatures"]["tower"]
    assert signature["inputs"] == {"bag": ("bag", "bag_1"), "recent": ("recent", "recent_1")}


WHY = (
    r"its ids are those of input 'bag', whose ragged rows it reads "
    r"\(lookups.py:\d+\).*to_tensor\(shape="
)


@pytest.mark.parametrize(
    "factory", ["lookups.py:build_ragged_odd", "lookups.py:build_ragged_of_any_length"]
)
def test_ragged_rows_that_are_not_reduced_stay_inside_the_tower_within_the_limit(
    factory: str, tmp_path: Path
) -> None:
    checkpoint = save_and_trace(tower_recipe(factory, INPUTS), tmp_path, bags())
    assert not checkpoint.model.spec.tables
    assert re.search(
        f"'items' of 20000 rows .312.5 KiB. stays inside the towers: {WHY}",
        checkpoint.model.notes[0],
    )
    assert checkpoint.model.notes[1] == (
        "input 'bag' goes into the towers, at most 64 values per example (inputs.bag.length_max)"
    )
    check_parity(checkpoint, tmp_path)
    with pytest.raises(
        NotConvertible, match=r"whose ragged rows it reads.*right after the lookup; or raise"
    ):
        trace_towers(tower_recipe(factory, INPUTS, code={"inline_bytes_max": 1000}), MODELS)
