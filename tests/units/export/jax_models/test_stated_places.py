"""Where prepared feature specifications place tables in the stacks of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.specs import StatedTable
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import NotConvertible
from export.jax_models.feature_specs import FeatureSpecs, read_feature_specs
from export.jax_models.specified_tables import SpecifiedTables
from tests.models import sparsecore_ranker as ranker
from tests.units.export.checkpoint.orbax_trees import write_item

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("stacks")
    ranker.write(folder)
    return open_checkpoint(folder / "checkpoint")


def specs_of(
    prepared: bool = True, only: tuple[str, ...] = (), **changes: dict[str, Any]
) -> FeatureSpecs:
    """Returns the ranker's specifications; of a table, `changes` replace its place's fields."""
    tables = ranker.table_specs(prepared)
    for name, changed in changes.items():
        fields = dict(changed)
        stack_rows = fields.pop("stack_vocab_size", None)
        tables[name]["setting_in_stack"].update(fields)
        if stack_rows is not None:
            tables[name]["stacked_table_spec"] = {"stack_vocab_size": stack_rows}
    return read_feature_specs(
        {
            feature: {"table_spec": tables[table]}
            for feature, table in ranker.FEATURES.items()
            if not only or table in only
        }
    )


def rejected(specs: FeatureSpecs, checkpoint: Checkpoint, name: str = "users") -> str:
    with pytest.raises(NotConvertible) as caught:
        SpecifiedTables(specs, checkpoint, {}).in_stack(name)
    return str(caught.value)


@pytest.mark.parametrize("name", ranker.TABLES)
def test_table_is_where_its_specification_places_it(name: str, checkpoint: Checkpoint) -> None:
    table = ranker.TABLES[name]
    stack_rows = {"movies_users": 256, "genres": 64, "tags": 64}[table.stack]
    assert SpecifiedTables(specs_of(), checkpoint, {}).in_stack(name) == StatedTable(
        key=f"embedding.{table.stack}.table",
        kind="sparse_core",
        rows=table.rows,
        dim=table.dim,
        cores=8,
        core_rows=stack_rows // 8,
        offset=table.offset,
        rotation=table.rotation,
    )


def stated(**changes: Any) -> StatedTable:
    fields = {
        "key": "embedding.movies_users.table",
        "kind": "sparse_core",
        "rows": 100,
        "dim": 4,
        "cores": 8,
        "core_rows": 32,
        "offset": 16,
        "rotation": 4,
    }
    return StatedTable(**{**fields, **changes})


def test_table_is_found_where_a_layout_states_it(checkpoint: Checkpoint) -> None:
    tables = SpecifiedTables(specs_of(), checkpoint, {"users": stated()})
    assert tables.is_found("users")
    assert not tables.is_found("movies")
    unprepared = SpecifiedTables(specs_of(prepared=False), checkpoint, {"users": stated()})
    assert unprepared.is_found("users")


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ({"offset": 0}, (256, 0, 4)),
        ({"rotation": 3}, (256, 16, 3)),
    ],
)
def test_layout_that_contradicts_the_specification_is_rejected(
    changes: dict[str, int], recorded: tuple[int, ...], checkpoint: Checkpoint
) -> None:
    tables = SpecifiedTables(specs_of(), checkpoint, {"users": stated(**changes)})
    with pytest.raises(NotConvertible) as caught:
        tables.is_found("users")
    assert (
        "table 'users' has (rows of its stack, offset, rotation) = (256, 16, 4) by feature_specs, "
        f"and {recorded} by the layout of 'embedding.movies_users.table'; prepare"
    ) in str(caught.value)


def test_unprepared_specification_places_no_table(checkpoint: Checkpoint) -> None:
    message = rejected(specs_of(prepared=False), checkpoint)
    assert message.startswith("table 'users' of feature_specs is in one of the stacks of")
    for stack in ("genres", "movies_users", "tags"):
        assert f"embedding.{stack}.table" in message


def test_unprepared_table_of_a_checkpoint_without_stacks_needs_a_key(tmp_path: Path) -> None:
    write_item(tmp_path / "checkpoint", {"params.users": np.zeros((100, 4), np.float32)})
    message = rejected(specs_of(prepared=False), open_checkpoint(tmp_path / "checkpoint"))
    assert "is not in checkpoint checkpoint: name its array as tables.users.key; " in message


def test_stack_of_another_name_is_rejected(checkpoint: Checkpoint) -> None:
    message = rejected(specs_of(users={"stack_name": "elsewhere"}), checkpoint)
    assert (
        "feature_specs place table 'users' in stack 'elsewhere', which is not in checkpoint "
        "checkpoint (its stacks: "
    ) in message


def test_checkpoint_without_stacks_is_told(tmp_path: Path) -> None:
    write_item(tmp_path / "checkpoint", {"params.w": np.zeros((3, 2), np.float32)})
    message = rejected(specs_of(), open_checkpoint(tmp_path / "checkpoint"))
    assert "(its stacks: none)" in message


def test_stack_that_is_there_twice_is_rejected(tmp_path: Path) -> None:
    stack = ranker.stacks(ranker.tables())["movies_users"]
    leaves = {}
    for branch in ("a", "b"):
        leaves[f"{branch}.movies_users.table"] = stack
        leaves[f"{branch}.movies_users.slot.0"] = np.zeros_like(stack)
    write_item(tmp_path / "checkpoint", leaves)
    message = rejected(specs_of(), open_checkpoint(tmp_path / "checkpoint"))
    assert "is in stack 'movies_users', which the checkpoint has several times: a.mov" in message


def test_stacks_for_different_numbers_of_cores_are_rejected(checkpoint: Checkpoint) -> None:
    """Of two stacks with two tables each, one is spread over eight cores and one over four."""
    specs = specs_of(
        genres={"stack_name": "both", "stack_vocab_size": 128},
        tags={"stack_name": "both", "stack_vocab_size": 128, "row_offset_in_shard": 16},
    )
    message = rejected(specs, checkpoint)
    assert message.startswith("feature_specs spread their stacks over 4 and 8 SparseCores; prepare")


def test_stack_whose_other_table_is_not_specified_tells_no_cores(checkpoint: Checkpoint) -> None:
    message = rejected(specs_of(only=("users", "tags")), checkpoint)
    assert "table 'users' in stack 'movies_users', and none of their stacks has two" in message
    assert SpecifiedTables(specs_of(only=("users", "movies")), checkpoint, {}).in_stack("users")


def test_tables_at_one_place_imply_no_cores(checkpoint: Checkpoint) -> None:
    # 128 padded rows and no distance between the tables: 128 cores of one row each.
    message = rejected(specs_of(users={"row_offset_in_shard": 0}), checkpoint)
    assert "pad table 'users' to 128 rows, no multiple of 8 on each of 128 Spars" in message


def test_stack_of_another_size_is_rejected(checkpoint: Checkpoint) -> None:
    changes = {"padded_vocab_size": 192, "stack_vocab_size": 320}
    specs = specs_of(users=changes, movies={"stack_vocab_size": 320})
    assert (
        "stack 'movies_users' of table 'users' has 320 rows by feature_specs, and 256 in the "
        "checkpoint ('embedding.movies_users.table'); prepare"
    ) in rejected(specs, checkpoint)


@pytest.mark.parametrize(("chunk_rows", "chunks"), [(32, 8), (128, 2), (100, 3), (16, 16)])
def test_chunks_of_a_stack_are_those_of_devices_with_whole_cores(
    chunk_rows: int, chunks: int, tmp_path: Path
) -> None:
    ranker.write(tmp_path, chunk_rows=chunk_rows)
    stored = open_checkpoint(tmp_path / "checkpoint")
    if 8 % chunks == 0:
        assert SpecifiedTables(specs_of(), stored, {}).in_stack("users").cores == 8
        return
    assert f"8 SparseCores by feature_specs, and stored in {chunks} chunks of rows" in rejected(
        specs_of(), stored
    )


LARGER = {"stack_vocab_size": 320}
THIRD = {"stack_name": "movies_users", "row_offset_in_shard": 32, **LARGER}


def test_three_tables_of_a_stack_imply_its_cores_together(checkpoint: Checkpoint) -> None:
    message = rejected(specs_of(movies=LARGER, users=LARGER, genres=THIRD), checkpoint)
    assert "stack 'movies_users' of table 'users' has 320 rows by feature_specs, and 256" in message


def test_two_of_three_tables_of_a_stack_imply_no_cores(checkpoint: Checkpoint) -> None:
    specs = specs_of(only=("users", "genres"), users=LARGER, genres=THIRD)
    message = rejected(specs, checkpoint)
    assert "table 'users' in stack 'movies_users', and none of their stacks has two" in message
