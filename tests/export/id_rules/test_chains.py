"""Ids that several rules make, one after the other: that they are data, and give the original's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec
from export.model.tracing import trace_towers
from export.verify.examples import Examples
from tests.export.lookups.gathering import HERE, hold, make, recipe

SENT: dict[str, Any] = {
    "city": np.array(["red", "", "\u00e9", " Blue ", "PURPLE", "green", "Red"], object),
    "item": np.array([7, -1, 5, 0, (1 << 31) + 3, -7, 1]),
    "shop": np.array([1 << 40, -3, 0, 9, 10, -11, 1]),
    "age": np.array([0.0, 0.5, 2.0, 29.9, 1.0, -4.0, 1e6], np.float32),
    "several": np.arange(21).reshape(7, 3) - 9,
}
INPUTS: dict[str, Any] = {
    "city": {"dtype": "string"},
    "item": {"dtype": "int64"},
    "shop": {"dtype": "int64"},
    "age": {"dtype": "float32"},
    "several": {"dtype": "int64", "shape": [3]},
}
EXAMPLES = Examples(
    7,
    {
        name: Column(values.reshape(-1), np.arange(8) * 3 if name == "several" else None)
        for name, values in SENT.items()
    },
)


def told(function: str) -> Any:
    return recipe(function, INPUTS, code={"factory": f"chain_models.py:{function}"})


@pytest.mark.parametrize("function", ["build", "build_3", "build_columns"])
def test_chains_leave_nothing_to_the_towers_and_give_the_original_s_rows(function: str, tmp_path: Path) -> None:
    tf = load_tensorflow()
    chains = make(told(function), {name: tf.constant(values[:1]) for name, values in SENT.items()}, tmp_path)
    assert all(isinstance(spec, FeatureSpec) for spec in chains.traced.spec.features.values())
    assert not chains.traced.notes
    hold(chains, tmp_path, EXAMPLES)
    hold(chains, tmp_path)


def test_chain_in_front_of_a_column_that_may_make_its_padding_is_refused() -> None:
    with pytest.raises(NotConvertible, match=r"'less_embedding' are computed .* may be -1.*as a remainder is not"):
        trace_towers(told("build_none"), HERE)
