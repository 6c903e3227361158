"""Factories of models in JAX that are scripts and notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from export.jax_models.functions import build_functions
from export.model_code.factories import load_factory
from export.recipe.schema import ExportJob
from tests.units.export.notebooks import write_notebook

jax = pytest.importorskip("jax")

load_tensorflow()
CELLS = (
    "%pip install jax\nimport jax\nimport jax.numpy as jnp\nfrom data_of_mine import load",
    "users = load()\nSCALE = users.mean()",
    "def rank(parameters, inputs):\n"
    '  users = jnp.take(parameters["users"], inputs["user"], axis=0)\n'
    '  return SCALE * users @ parameters["kernel"]',
    "def build(rows, dim=8):\n"
    '  shapes = {"users": (rows, dim), "kernel": (dim, 1)}\n'
    "  return {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}, rank",
    "train(users)",
)


def job(folder: Path, **code: object) -> ExportJob:
    write_notebook(folder / "model.ipynb", CELLS)
    page = {
        "model": "users",
        "checkpoint": {"path": "checkpoint"},
        "code": {"factory": "model.ipynb:build", **code},
        "output": {"root": "bundles"},
        "inputs": {"user": {"dtype": "int32"}},
        "towers": {"rank": {"role": "ranking"}},
        "features": {"user": {"role": "candidate"}},
    }
    return ExportJob.model_validate(page)


def test_functions_of_a_notebook_take_arguments_and_names(tmp_path: Path) -> None:
    recipe = job(tmp_path, arguments={"rows": 30}, names={"SCALE": 0.5})
    model = build_functions(recipe, tmp_path)
    assert {path: leaf.shape for path, leaf in model.leaves.items()} == {
        "users": (30, 8),
        "kernel": (8, 1),
    }
    parameters = {path: jax.numpy.ones(leaf.shape) for path, leaf in model.leaves.items()}
    scores = model.functions[""](parameters, {"user": jax.numpy.array([3])})
    assert scores.tolist() == [[4.0]]


def test_argument_that_a_function_of_a_notebook_needs_is_told(tmp_path: Path) -> None:
    message = r"code.arguments: model.ipynb:build needs rows; its parameters: rows, dim=8"
    with pytest.raises(UsageError, match=message):
        build_functions(job(tmp_path), tmp_path)


def test_setting_of_jax_is_taken(tmp_path: Path) -> None:
    text = 'from jax import config\nconfig.update("jax_enable_x64", 1 > 2)\ndef build(): ...\n'
    (tmp_path / "model.py").write_text(text)
    assert load_factory("model.py:build", tmp_path, only_definitions=True).notes == ()
