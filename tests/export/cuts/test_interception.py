from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.columns import Column
from export.errors import NotConvertible
from export.examples import Examples
from export.frameworks import load_tensorflow
from export.settings import ExportJob
from export.tracing import trace_towers
from tests.export.cuts.gathering import HERE, hold, make, recipe


def asked(function: str, inputs: dict[str, Any], **code: Any) -> ExportJob:
    return recipe(function, inputs, code={"factory": f"interception_models.py:{function}"} | code)


def test_rows_one_by_one_are_scaled_to_max_norm_in_the_tower(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs: dict[str, Any] = {
        "one": {"dtype": "int64"},
        "recent": {"dtype": "int64", "shape": [3]},
        "column": {"dtype": "int64"},
    }
    given = {"one": [1], "recent": [[1, 2, 3]], "column": [2]}
    job = asked("build_scaled", inputs)
    made = make(job, {name: tf.constant(value, tf.int64) for name, value in given.items()}, tmp_path)
    assert {name: getattr(spec, "kind", "") for name, spec in made.traced.spec.features.items()} == {
        "one": "single",
        "recent": "sequence",
        "column": "single",
    }
    hold(made, tmp_path)


@pytest.mark.parametrize(
    ("way", "part"),
    [
        ("bag", {"dtype": "int64", "kind": "ragged"}),
        ("sparse", {"dtype": "int64", "kind": "sparse"}),
        ("column", {"dtype": "int64", "shape": [2]}),
    ],
)
def test_bag_with_max_norm_is_refused_in_one_line_with_the_users_line_and_the_cure(
    way: str, part: dict[str, Any]
) -> None:
    job = asked(f"build_scaled_{way}", {way: part})
    with pytest.raises(
        NotConvertible, match=r"^lookup '.*' has max_norm.*once in the checkpoint.*\(interception_models.py:\d+\)$"
    ):
        trace_towers(job, HERE)


def test_indicators_of_integers_and_buckets_are_computed_in_the_tower(tmp_path: Path) -> None:
    tf = load_tensorflow()
    columns = {
        "listed": np.array([[30, 5, 5], [-1, 7, 8], [-1, -1, -1]]),
        "listed_or_first": np.array([[30, -1], [5, 5], [99, -7]]),
        "buckets": np.array([[-1.0, 2.0], [0.5, 0.0], [1.5, -9.0]], np.float32),
    }
    inputs = {name: {"dtype": str(values.dtype), "shape": list(values.shape[1:])} for name, values in columns.items()}
    made = make(
        asked("build_indicators", inputs), {name: tf.constant(values) for name, values in columns.items()}, tmp_path
    )
    assert not made.traced.spec.tables
    hold(made, tmp_path, Examples(3, {name: Column(values.reshape(-1)) for name, values in columns.items()}))


@pytest.mark.parametrize("way", ["hashed", "beyond"])
def test_indicator_that_no_tower_computes_is_refused_in_one_line_with_the_users_line_and_the_cure(way: str) -> None:
    job = asked(f"build_indicator_{way}", {way: {"dtype": "int64"}})
    told = rf"^column '{way}_indicator' is an indicator of .*numeric_column of shape .*\(interception_models.py:\d+\)$"
    with pytest.raises(NotConvertible, match=told):
        trace_towers(job, HERE)


@pytest.mark.parametrize("way", ["sliced", "unstacked", "split"])
def test_ids_cut_out_of_a_wide_input_are_told_with_the_cure_and_stay_inside_within_the_limit(
    way: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    job = asked(f"build_{way}", {"wide": {"dtype": "int64", "shape": [3]}})
    made = make(job, {"wide": tf.constant([[1, 2, 3]], tf.int64)}, tmp_path)
    (note,) = made.traced.notes
    told = "its ids are a part of input 'wide', which should be an input of its own, cut out by operation"
    assert f"stays inside the towers: {told}" in note
    if way == "sliced":  # LiteRT does the others with no integers of 64 bits
        hold(made, tmp_path, Examples(2, {"wide": Column(np.array([1, 20, 3, 7, 19_999, 9]))}))
    small = asked(f"build_{way}", {"wide": {"dtype": "int64", "shape": [3]}}, inline_bytes_max=1000)
    with pytest.raises(NotConvertible, match=rf"{told} '.*' \(\w+\) \(interception_models.py:\d+\)"):
        trace_towers(small, HERE)
