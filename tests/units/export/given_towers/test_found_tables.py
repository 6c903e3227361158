"""What a recipe for tables of PyTorch must state, and where its tables are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, NotConvertible, UsageError
from export.front_end.interface import PartitionedModel
from export.given_towers.front_end import GivenTowersFrontEnd
from export.graphs.loading import load_tensorflow
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.given_towers.graphs import write_sum
from tests.units.export.traced_models import recipe

load_tensorflow()
MODEL = """
def build():
    users = {
        "name": "users",
        "num_embeddings": 5,
        "embedding_dim": 2,
        "feature_names": ["user"],
        "pooling": "sum",
    }
    return [users], {"rank": "rank.npz", "": "rank.npz"}
"""
INPUTS = {"user": {"dtype": "int64"}, "item": {"dtype": "float32", "shape": [2]}}
RANK: dict[str, Any] = {"role": "ranking", "call": "rank"}


def partitioned(
    folder: Path,
    tower: dict[str, Any] | None = None,
    expected: dict[str, str] | None = None,
    leaves: dict[str, Any] | None = None,
    **sections: Any,
) -> PartitionedModel:
    (folder / "model.py").write_text(MODEL)
    write_sum(folder / "rank.npz")
    write_item(folder / "checkpoint", leaves or {"users": np.zeros((5, 2), np.float32)})
    (folder / "examples.jsonl").touch()
    verify = {
        "examples": "examples.jsonl",
        "expected": {"result": "score"} if expected is None else expected,
    }
    job = recipe("model.py:build", INPUTS, {"rank": tower or RANK}, {"verify": verify, **sections})
    return GivenTowersFrontEnd().partition(job, folder, open_checkpoint(folder / "checkpoint"))


@pytest.mark.parametrize("expected", [{"result": "score"}, {"rank.result": "score"}])
def test_tower_is_compared_with_a_recorded_output(expected: dict[str, str], tmp_path: Path) -> None:
    model = partitioned(tmp_path, expected=expected)
    assert [tower.spec.name for tower in model.towers] == ["rank"]
    assert list(model.spec.tables) == ["users"]
    assert {tensor.feature for tensor in model.towers[0].spec.inputs} == {"user", "item"}


@pytest.mark.parametrize(
    ("tower", "expected", "output"),
    [
        (RANK, {}, "result"),
        (RANK, {"click": "score"}, "result"),
        (RANK, {"other.result": "score"}, "result"),
        ({**RANK, "outputs": {"a": "a", "b": "b"}, "result": "b"}, {"c": "score"}, "b"),
        ({**RANK, "outputs": {"a": "a"}}, {"result": "score"}, "a"),
    ],
)
def test_tower_that_is_compared_with_nothing_is_rejected(
    tower: dict[str, Any], expected: dict[str, str], output: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        partitioned(tmp_path, tower, expected)
    assert "tower 'rank' of PyTorch is compared with nothing" in str(caught.value)
    assert str(caught.value).endswith(f"as verify.expected.{output}")


def test_table_is_found_by_its_stated_key(tmp_path: Path) -> None:
    leaves = {"users": np.zeros((7, 2), np.float32), "other": np.zeros((5, 2), np.float32)}
    model = partitioned(tmp_path, leaves=leaves, tables={"users": {"key": "other"}})
    table = model.original.find_tables().table("users")
    assert (table.key, table.rows, table.dim) == ("other", 5, 2)


def test_table_that_is_not_stated_and_not_known_is_rejected(tmp_path: Path) -> None:
    model = partitioned(tmp_path, tables={"users": {}})
    with pytest.raises(NotConvertible, match="checkpoint checkpoint has no table 'users'"):
        model.original.find_tables()


def test_table_of_another_size_is_rejected(tmp_path: Path) -> None:
    leaves = {"users": np.zeros((7, 2), np.float32)}
    stated = {"users": {"key": "users"}}
    model = partitioned(tmp_path, leaves=leaves, tables=stated)
    with pytest.raises((CheckpointError, NotConvertible), match=r"table 'users' is \[5, 2\] in"):
        model.original.find_tables()


def test_weights_are_in_the_file_of_the_tower(tmp_path: Path) -> None:
    original = partitioned(tmp_path).original
    variables = [object(), object()]
    assert original.find_weights(variables) == [(variable, "") for variable in variables]
    assert original.note_unmatched_weights(["more"]) == ()
    with pytest.raises(NotConvertible, match="a tower in a file has no embedding layer 'config'"):
        original.combine("config", None, None, None)


@pytest.mark.parametrize(
    "part", [{"averages": True}, {"object_path": "model"}, {"by": "names"}, {}]
)
def test_ways_to_find_variables_of_tensorflow_are_rejected(
    part: dict[str, Any], tmp_path: Path
) -> None:
    write_item(tmp_path / "checkpoint", {"users": np.zeros((5, 2), np.float32)})
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    page = {"checkpoint": {"path": "checkpoint", **part}}
    job = recipe("model.py:build", INPUTS, {"rank": RANK}, page)
    if not part:
        assert GivenTowersFrontEnd().find_variables(job, checkpoint) == (job, checkpoint)
        return
    with pytest.raises(CheckpointError, match="is PyTorch's, whose tables are found by their"):
        GivenTowersFrontEnd().find_variables(job, checkpoint)
