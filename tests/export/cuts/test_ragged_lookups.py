from __future__ import annotations

from pathlib import Path

import pytest

from export.errors import NotConvertible
from export.frameworks import load_tensorflow
from export.model.tracing import trace_towers
from export.towers.descriptions import FeatureSpec
from tests.export.cuts.gathering import HERE, hold, make, recipe

RAGGED = {"dtype": "int64", "kind": "ragged"}
INPUTS = {"bag": RAGGED, "recent": RAGGED}


def test_ragged_ids_that_are_made_dense_become_bags_and_sequences(tmp_path: Path) -> None:
    tf = load_tensorflow()
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    made = make(recipe("build_ragged", INPUTS), {"bag": bag, "recent": bag}, tmp_path)
    embedded = {name: spec for name, spec in made.traced.spec.features.items() if isinstance(spec, FeatureSpec)}
    assert {name: (spec.kind, spec.combiner, spec.length) for name, spec in embedded.items()} == {
        "bag@items": ("bag", "mean", None),
        "bag@items.sum": ("bag", "sum", None),
        "recent": ("sequence", None, 3),
    }
    hold(made, tmp_path)


@pytest.mark.parametrize("function", ["build_ragged_odd", "build_ragged_of_any_length"])
def test_ragged_rows_that_stay_ragged_are_refused_with_the_line_and_the_cure(function: str) -> None:
    with pytest.raises(NotConvertible, match=r"rows of ragged ids \(gather_models.py:\d+\).*to_tensor\(shape="):
        trace_towers(recipe(function, INPUTS), HERE)
