from __future__ import annotations

import re
from pathlib import Path

import pytest

from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.model.tracing import trace_towers
from tests.export.lookups.gathering import HERE, hold, make, recipe

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


ODD = ["build_ragged_odd", "build_ragged_of_any_length"]
WHY = r"its ids are those of input 'bag', whose rows are read as they are \(gather_models.py:\d+\).*to_tensor\(shape="


@pytest.mark.parametrize("function", ODD)
def test_ragged_rows_that_stay_ragged_are_read_inside_the_tower(function: str, tmp_path: Path) -> None:
    tf = load_tensorflow()
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    made = make(recipe(function, INPUTS), {"bag": bag, "recent": bag}, tmp_path)
    assert not made.traced.spec.tables
    assert re.search(f"'items' of 20000 rows .312.5 KiB. stays inside the towers: {WHY}", made.traced.notes[0])
    assert made.traced.notes[1] == (
        "input 'bag' goes into the towers, of an example 64 values at most (inputs.bag.length_max)"
    )
    hold(made, tmp_path)


@pytest.mark.parametrize("function", ODD)
def test_ragged_rows_of_a_large_table_that_stay_ragged_are_refused(function: str) -> None:
    job = recipe(function, INPUTS, code={"inline_bytes_max": 1000})
    with pytest.raises(
        NotConvertible, match=r"whose rows are read as they are.*right behind the lookup; or raise the limit"
    ):
        trace_towers(job, HERE)
