from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import Cast, ComputedIds, IdOperation
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.verify.examples import Examples
from tests.export.lookups.gathering import Made, hold, make, recipe

N, FIELDS = 30, 6
SIZES = np.array([100, 3000, 7, 50, 9000, 400])
IDS = (
    "part",
    "part_whole",
    "gathered",
    "split",
    "unstacked",
    "shuffled",
    "flat",
    "transposed",
    "stacked",
    "joined",
    "layer",
)
OFFSETS = ("offset", "offset_numpy", "offset_computed", "offset_flat", "offset_each", "offset_part", "offset_many")
CASTS = ("cast", "cast_down", "cast_nearest", "cast_hash", "cast_some")
BUCKETS = ("bucketized", "bucketized_offset", "searched", "searched_left", "searched_ages")
NORMALISED = ("normalised", "normalised_layer", "logarithms", "negated", "since")
CAST = {
    "cast": Cast(of="float32", to="int32"),
    "cast_down": Cast(of="float32", to="int64", rounding="down"),
    "cast_nearest": Cast(of="float32", to="int32", rounding="half_even"),
}
INPUTS: dict[str, dict[str, Any]] = {
    "x": {"dtype": "int64", "shape": [FIELDS]},
    "a": {"dtype": "int64"},
    "b": {"dtype": "int64"},
    "n": {"dtype": "float32", "shape": [FIELDS]},
}


def made(way: str, directory: Path, **parts: Any) -> Made:
    tf = load_tensorflow()
    code = {"factory": f"place_models.py:build_{way}"} | parts.pop("code", {})
    given = {name: tf.zeros([2, *part.get("shape", [])], part["dtype"]) for name, part in INPUTS.items()}
    return make(recipe("", INPUTS, code=code, **parts), given, directory)


def examples(made: Made) -> Examples:
    random = np.random.default_rng(3)
    x = random.integers(0, SIZES, (N, FIELDS))
    n = random.normal(0, 3, x.shape).astype(np.float32) * 10 ** random.integers(-1, 3, x.shape).astype(np.float32)
    n[:4] = np.array([0.0, -0.0, 0.25, 1e10, -3e38, 2.0**31])
    columns = {"x": x, "a": x[:, 0], "b": x[:, 1], "n": n}
    return Examples(N, {name: Column(columns[name].reshape(-1)) for name in made.traced.spec.inputs})


@pytest.mark.parametrize("way", [*IDS, *OFFSETS, *CASTS, *BUCKETS, *NORMALISED])
def test_ids_of_a_wide_input_leave_the_model(way: str, tmp_path: Path) -> None:
    cut = made(way, tmp_path)
    assert cut.traced.notes == ()
    if way in CAST:
        assert {each.cast for each in cut.traced.spec.features.values() if isinstance(each, FeatureSpec)} == {CAST[way]}
    assert set(cut.traced.spec.tables) == {"rows" if "flat" in way else "table"}
    hold(cut, tmp_path, examples(cut))
    hold(cut, tmp_path)


def within(size: int, offset: int) -> ComputedIds:
    return ComputedIds(operations=(IdOperation(do="remainder", by=size), IdOperation(do="add", by=offset)))


def test_ids_of_a_wide_input_are_features_of_their_places(tmp_path: Path) -> None:
    features = made("offset_part", tmp_path).traced.spec.features
    assert [(each.place, each.places, each.rule) for each in features.values() if isinstance(each, FeatureSpec)] == [
        (1, FIELDS, within(3000, 100)),
        (3, FIELDS, within(50, 3107)),
        (5, FIELDS, within(400, 12_157)),
    ]


def test_ids_that_are_flattened_stay_together(tmp_path: Path) -> None:
    (spec,) = made("flat", tmp_path).traced.spec.features.values()
    assert isinstance(spec, FeatureSpec)
    assert (spec.kind, spec.length, spec.place, spec.rule) == ("sequence", FIELDS, None, None)


@pytest.mark.parametrize(
    ("way", "operation", "cure"),
    [
        ("multiplied", "Mul", "let callers send what is looked up"),
        ("variable", "ReadVariableOp", "make a constant of the variable"),
        ("unguarded", "Log", "let the number only rise, or only fall, .*tf.maximum"),
    ],
)
def test_ids_that_no_rule_tells_name_the_line_and_what_to_change(
    way: str, operation: str, cure: str, tmp_path: Path
) -> None:
    (note,) = made(way, tmp_path).traced.notes
    line = rf"operation '.*' \({operation}\) \(place_models.py:\d+\) of the model"
    assert re.search(f"its ids are computed by {line}; to take it out, {cure}", note), note
