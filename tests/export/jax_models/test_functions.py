"""Functions that share parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.jax_models.functions import Calls, build_functions, path_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.tracing import trace_towers

jax = pytest.importorskip("jax")

LARGE = """
import jax
import jax.numpy as jnp


def rank(parameters, inputs):
    return jnp.take(parameters["users"], inputs["user"], axis=0) @ parameters["kernel"]


def build():
    shapes = {"users": (2_000_000_000, 256), "kernel": (256, 1)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return shapes, {"rank": rank}
"""


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


def test_table_of_two_terabytes_is_cut_out_and_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LARGE)
    job = ExportJob.model_validate(
        {
            "model": "large",
            "checkpoint": {"path": "checkpoint"},
            "code": {"factory": "model.py:build"},
            "output": {"root": "bundles"},
            "inputs": {"user": {"dtype": "int32"}},
            "towers": {"rank": {"role": "ranking", "call": "rank"}},
            "features": {"user": {"role": "candidate"}},
        }
    )
    traced = trace_towers(job, tmp_path, build=lambda job, base: Calls(build_functions(job, base)))
    (table,) = traced.spec.tables.values()
    assert (table.rows, table.dim) == (2 * 10**9, 256)
    (tower,) = traced.towers
    assert [variable.shape.as_list() for variable in tower.variables] == [[256, 1]]
