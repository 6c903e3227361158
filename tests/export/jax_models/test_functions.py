from __future__ import annotations

import pytest

from export.jax_models.functions import path_of

jax = pytest.importorskip("jax")


def test_path_of_a_parameter_lacks_the_value_that_nnx_adds_at_its_end() -> None:
    tree = {
        "kernel": {"value": 0},
        "layers": [{"bias": {"value": 1}}, 2],
        "value": 3,
        "wrapped": {"value": {"scale": 4}},
        "twice": {"value": {"value": 5}},
    }
    leaves, _ = jax.tree.flatten_with_path(tree)
    assert {value: path_of(path) for path, value in leaves} == {
        0: "kernel",
        1: "layers/0/bias",
        2: "layers/1",
        3: "value",
        4: "wrapped/value/scale",
        5: "twice/value",
    }
