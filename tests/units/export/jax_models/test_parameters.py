"""Parameters of a model are found in a checkpoint of Orbax, wherever its tree has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.jobs.preparation import Prepared
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.job_runs import prepare

pytest.importorskip("jax")

MODEL = """
import jax
import jax.numpy as jnp

PARTS = {"users": {"table": (4, 2)}, "bias": (3,), "dropout": None}


def shape_of(size):
    if size is None:
        return jax.eval_shape(lambda: jax.random.key(0))
    return jax.ShapeDtypeStruct(size, jnp.float32)


def build(branch=""):
    shapes = jax.tree.map(shape_of, PARTS, is_leaf=lambda part: not isinstance(part, dict))

    def call(parameters, inputs):
        parameters = parameters[branch] if branch else parameters
        rows = parameters["users"]["table"][inputs["user"]]
        return jnp.concatenate([rows, parameters["bias"] + rows[:, :1]], 1)

    return {branch: shapes} if branch else shapes, call
"""
TREES: list[tuple[tuple[str, ...], str, str, str]] = [
    (("users.table", "bias"), "", "", ""),
    (("state.params.users.table", "state.params.bias"), "", "", "state.params."),
    (("old.users.table", "params.users.table", "params.bias"), "", "", "params."),
    (("params.users.table", "params.bias", "opt.users.table", "opt.bias"), "", "", "params."),
    (("ema.p.users.table", "ema.p.bias", "p.users.table", "p.bias"), "/ema/p/", "", "ema.p."),
    # Flax keeps parameters in a branch that programs store, or what is in it.
    (("users.table", "bias"), "", "params", ""),
    (("params.users.table", "params.bias", "users.table", "bias"), "", "params", "params."),
    # dm-haiku names a module by the modules around it.
    (("net/~/in.users.table", "net/~/in.bias"), "", "net/~/in", "net/~/in."),
    (("p.net/~/in.users.table", "p.net/~/in.bias"), "", "net/~/in", "p.net/~/in."),
    (("p.a/b.users.table", "p.a/b.bias", "p.c.users.table"), "p/a/b", "", "p.a/b."),
    (("a/b.users.table", "a/b.bias", "a.b.users.table", "a.b.bias"), "a/b", "", "a/b."),
    (("a/b.users.table", "a/b.bias", "a.b.users.table", "a.b.bias"), "a.b", "", "a.b."),
]
"""Arrays of a checkpoint, checkpoint.object_path and the model's own branch -> where they begin."""


def prepared(
    folder: Path, leaves: dict[str, Any], object_path: str = "", branch: str = ""
) -> Prepared:
    (folder / "model.py").write_text(MODEL)
    write_item(folder / "checkpoint", leaves)
    page = {
        "model": "parameters",
        "checkpoint": {"path": "checkpoint", "object_path": object_path},
        "code": {
            "factory": "model.py:build",
            "arguments": {"branch": branch},
            "table_threshold": 0,
        },
        "output": {"root": "bundles"},
        "inputs": {"user": {"dtype": "int32"}},
        "towers": {"tower": {"role": "query"}},
    }
    return prepare(page, folder)


@pytest.mark.parametrize("suffix", ["", ".value"])
@pytest.mark.parametrize(("keys", "object_path", "branch", "beginning"), TREES)
def test_parameters_begin_where_most_of_them_are(
    keys: tuple[str, ...],
    object_path: str,
    branch: str,
    beginning: str,
    suffix: str,
    tmp_path: Path,
) -> None:
    leaves = {
        f"{key}{suffix}": np.full((4, 2) if "table" in key else (3,), number, np.float32)
        for number, key in enumerate(keys)
    }
    job = prepared(tmp_path, leaves, object_path, branch)
    (table,) = job.inventory.tables
    assert table.key == f"{beginning}users.table{suffix}"
    (tower,) = job.traced.towers
    ((_, key),) = job.traced.original.find_weights(tower.variables)
    assert key == f"{beginning}bias{suffix}"


def test_a_path_that_two_trees_may_have_is_refused(tmp_path: Path) -> None:
    table = np.ones((4, 2), np.float32)
    leaves = {"p.a/b.users.table": table, "p.a.b.users.table": table}
    with pytest.raises(CheckpointError, match=r"'p\.a\.b' or 'p\.a/b'; write the one to export"):
        prepared(tmp_path, leaves, "p/a/b")


def test_arrays_that_orbax_stores_as_one_are_a_problem(tmp_path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint")
    with orbax.StandardCheckpointer() as checkpointer:
        tree = {"a": {"b": {"w": np.ones(3)}}, "a.b": {"w": np.zeros(3)}}
        checkpointer.save(tmp_path / "checkpoint", tree)
    with pytest.raises(CheckpointError, match=r"'a\.b\.w': 2 arrays of the tree have this path"):
        open_checkpoint(tmp_path / "checkpoint", complete=True)


def test_matrices_that_the_model_lacks_are_noted(tmp_path: Path) -> None:
    leaves = {"params.users.table": np.ones((4, 2), "f4"), "params.bias": np.ones(3, "f4")}
    matrices = {f"params.m{number}": np.ones((2, 2), np.float32) for number in range(6)}
    elsewhere = {"ema.kernel": np.ones((2, 2), np.float32)}
    (note,) = prepared(tmp_path, {**leaves, **matrices, **elsewhere}).also_stored
    assert "params.m0 [2, 2]" in note
    assert "1 more" in note
    assert "ema" not in note
