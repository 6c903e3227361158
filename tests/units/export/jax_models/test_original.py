"""A model in JAX beside its checkpoint: its tables and weights, and what it leaves unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, NotConvertible
from export.front_end.interface import PartitionedModel
from export.graphs.loading import load_tensorflow
from export.jax_models.front_end import JaxFrontEnd
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.traced_models import recipe

pytest.importorskip("jax")
load_tensorflow()
MODEL = """
import jax
import jax.numpy as jnp

SHAPES = {
    "users": jax.ShapeDtypeStruct((6, 2), jnp.float32),
    "w": jax.ShapeDtypeStruct((2, 3), jnp.float32),
}


def score(parameters, inputs):
    return parameters["users"].at[inputs["user"]].get(mode="clip") @ parameters["w"]


def build():
    return SHAPES, {"score": score}
"""
INPUTS = {"user": {"dtype": "int32"}}
TOWERS = {"score": {"role": "query", "call": "score"}}
WEIGHTS = {
    "params.users": np.arange(12, dtype=np.float32).reshape(6, 2),
    "params.w": np.arange(6, dtype=np.float32).reshape(2, 3),
}


def partitioned(
    folder: Path, leaves: dict[str, Any] | None = None, code: str = MODEL, **sections: Any
) -> PartitionedModel:
    (folder / "model.py").write_text(code)
    write_item(folder / "checkpoint", {**WEIGHTS, **(leaves or {})})
    code_section = {"factory": "model.py:build", "table_threshold": 0}
    job = recipe(
        "model.py:build", INPUTS, TOWERS, {"code": code_section, "checkpoint": PATH, **sections}
    )
    return JaxFrontEnd().partition(job, folder, open_checkpoint(folder / "checkpoint"))


PATH = {"path": "checkpoint"}


def test_table_and_weights_are_found_by_their_paths(tmp_path: Path) -> None:
    model = partitioned(tmp_path)
    (table,) = model.spec.tables.values()
    assert (table.rows, table.dim) == (6, 2)
    stored_table = model.original.find_tables().table(table.name)
    assert (stored_table.key, stored_table.rows, stored_table.dim) == ("params.users", 6, 2)
    (variable,) = model.towers[0].variables
    assert [key for _, key in model.original.find_weights([variable])] == ["params.w"]
    assert variable.is_initialized()
    model.original.restore_weights([variable])
    np.testing.assert_array_equal(variable, WEIGHTS["params.w"])


def test_table_is_found_by_its_stated_key(tmp_path: Path) -> None:
    unrelated = {"other": np.ones((6, 2), np.float32)}
    model = partitioned(tmp_path, unrelated, tables={"users": {"key": "other"}})
    assert model.original.find_tables().table("users").key == "other"


def test_table_of_another_size_is_rejected(tmp_path: Path) -> None:
    unrelated = {"other": np.ones((7, 2), np.float32)}
    model = partitioned(tmp_path, unrelated, tables={"users": {"key": "other"}})
    with pytest.raises((CheckpointError, NotConvertible), match=r"table 'users' is \[6, 2\] in"):
        model.original.find_tables()


@pytest.mark.parametrize(("count", "more"), [(0, None), (5, ""), (6, " and 1 more")])
def test_matrices_that_the_model_lacks_are_noted(
    count: int, more: str | None, tmp_path: Path
) -> None:
    matrices = {f"params.m{number}": np.ones((2, 2), np.float32) for number in range(count)}
    original = partitioned(tmp_path, matrices).original
    notes = original.note_unmatched_weights([*WEIGHTS, *matrices])
    if more is None:
        assert notes == ()
        return
    (note,) = notes
    listed = ", ".join(f"params.m{number} [2, 2]" for number in range(5))
    assert note.startswith(
        f"checkpoint checkpoint also holds {listed}{more}, which the model code lacks; if they"
    )


def test_module_with_fewer_parameters_than_were_saved_is_rejected(tmp_path: Path) -> None:
    code = MODEL.replace('"w": jax', '"dense/kernel": jax').replace('"w"', '"dense/kernel"')
    layer = {"params.dense.kernel": np.ones((2, 3)), "params.dense.bias": np.ones(3)}
    leaves = {key: value.astype(np.float32) for key, value in layer.items()}
    original = partitioned(tmp_path, leaves, code).original
    with pytest.raises(CheckpointError, match=r"also holds params.dense.bias \[3\], which the"):
        original.note_unmatched_weights([*WEIGHTS, *layer])


def test_averages_are_found_by_their_path_alone(tmp_path: Path) -> None:
    write_item(tmp_path / "checkpoint", WEIGHTS)
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    job = recipe("model.py:build", INPUTS, TOWERS, {"checkpoint": PATH})
    assert JaxFrontEnd().find_variables(job, checkpoint) == (job, checkpoint)
    averaged = recipe("m.py:build", INPUTS, TOWERS, {"checkpoint": {**PATH, "averages": True}})
    with pytest.raises(CheckpointError, match="is Orbax's, where averages are a tree of their own"):
        JaxFrontEnd().find_variables(averaged, checkpoint)


def test_function_has_no_layer_that_combines(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="a function of JAX has no embedding layer 'config'"):
        partitioned(tmp_path).original.combine("config", None, None, None)
