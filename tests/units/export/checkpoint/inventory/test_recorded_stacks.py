"""Stacks whose layout jax-tpu-embedding saved beside them, in an item of the same step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory import recorded_stacks
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.layouts import SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.trained_rows import TrainedRows
from export.errors import CheckpointError, NotConvertible
from tests.units.export.checkpoint.inventory.test_layout_file import SPEC_TEXT
from tests.units.export.checkpoint.orbax_trees import Leaves, write_item

STACK = np.zeros((1920, 16), np.float32)
LEAVES: Leaves = {
    "embed.embedding_table.value.users_items.table": STACK,
    "embed.embedding_table.value.users_items.slot.accumulator": STACK,
}


def step(root: Path, spec: str, item: str = "embedding_spec", leaves: Leaves = LEAVES) -> Path:
    """A step as jax-tpu-embedding's save_checkpoint writes it."""
    write_item(root / "7" / "model", leaves)
    write_item(root / "7" / "optimizer", {"mu": np.zeros(3, np.float32)})
    (root / "7" / item).mkdir()
    (root / "7" / item / "proto.pbtxt").write_text(spec)
    committed = {"commit_timestamp_nsecs": 2, "init_timestamp_nsecs": 1}
    (root / "7" / "_CHECKPOINT_METADATA").write_text(json.dumps(committed))
    return root


@pytest.mark.parametrize("item", ["embedding_spec", "tables"])
@pytest.mark.parametrize("path", ["", "7"])
def test_stack_is_read_by_the_layout_that_its_checkpoint_holds(
    tmp_path: Path, path: str, item: str
) -> None:
    inventory = recognize(open_checkpoint(step(tmp_path, SPEC_TEXT, item) / path))
    key = "model.embed.embedding_table.value.users_items.table"
    assert {
        table.name: (table.key, table.rows, table.dim, table.layout) for table in inventory.tables
    } == {
        "items": (key, 503, 16, SparseCore(8, 240, 128, 4)),
        "users": (key, 1000, 16, SparseCore(8, 240, 0, 0)),
    }
    assert {(table.origin, table.stated) for table in inventory.tables} == {
        ("embedding spec", False)
    }
    assert inventory.rejected == ()


def test_record_that_shapes_do_not_prove_and_other_devices_stored_is_noted(tmp_path: Path) -> None:
    spec = """stacked_table_specs {
        stack_name: "tags" stack_vocab_size: 256 stack_embedding_dim: 8 num_sparsecores: 32
        table_specs { table_name: "tags" vocab_size: 256 embedding_dim: 8 }
    }"""
    values = np.zeros((256, 8), np.float32)
    leaves = {f"tags.{name}": values for name in ("table", "slot.accumulator")}
    for chunk_rows, is_noted in ((256, True), (256 // 8, False)):
        root = step(tmp_path / str(chunk_rows), spec, leaves=leaves)
        shutil.rmtree(root / "7" / "model")
        write_item(root / "7" / "model", leaves, chunk_rows=chunk_rows)
        (table,) = recognize(open_checkpoint(root)).tables
        assert table.layout == SparseCore(32, 8, 0, 0)
        assert ("ids of training prove which it is" in table.note) == is_noted


@pytest.mark.parametrize("spec", ["", "some_field: 3", SPEC_TEXT.replace("users_items", "others")])
def test_stack_without_a_recorded_layout_needs_a_layout_file(tmp_path: Path, spec: str) -> None:
    inventory = recognize(open_checkpoint(step(tmp_path, spec)))
    assert (inventory.tables, [rejected.name for rejected in inventory.rejected]) == (
        (),
        ["users_items"],
    )


def test_layout_file_that_contradicts_the_layout_that_a_checkpoint_holds_is_rejected(
    tmp_path: Path,
) -> None:
    stated = {"users": StatedTable(key="users_items", kind="sparse_core", rows=9, dim=1, cores=4)}
    with pytest.raises(NotConvertible) as failure:
        recognize(open_checkpoint(step(tmp_path, SPEC_TEXT)), Statements(layouts=stated))
    assert str(failure.value) == (
        "layout file: table 'users' (9 rows, 4 cores) contradicts what the checkpoint records of "
        "'model.embed.embedding_table.value.users_items.table': 'users' (1000 rows, 8 cores), "
        "'items' (503 rows, 8 cores, offset 128, rotation 4); leave the table out of the file, or "
        "prove it by ids of training (verify.trained_ids, --trained-ids)"
    )


def test_layout_file_that_repeats_the_layout_that_a_checkpoint_holds_is_no_statement(
    tmp_path: Path,
) -> None:
    repeated = StatedTable(
        key="users_items", kind="sparse_core", rows=503, dim=16, cores=8, offset=128, rotation=4
    )
    statements = Statements(layouts={"mine": repeated})
    (table,) = recognize(open_checkpoint(step(tmp_path, SPEC_TEXT)), statements).tables
    assert (table.name, table.stated, table.note) == ("mine", False, "")


def test_ids_of_training_prove_a_layout_file_against_a_record_of_other_devices(
    tmp_path: Path,
) -> None:
    """As a program leaves it that spreads the rows anew and copies the record as it was."""
    random = np.random.default_rng(1)
    cores = 16
    trained = np.flatnonzero(random.random(1000) < 0.3)
    accumulators = np.full((1920, 16), 0.1, np.float32)
    stored = trained % cores * (1920 // cores) + trained // cores
    accumulators[stored] += random.random((len(trained), 16)).astype(np.float32)
    leaves = {
        "embed.embedding_table.value.users_items.table": STACK,
        "embed.embedding_table.value.users_items.slot.accumulator": accumulators,
    }
    stated = StatedTable(key="users_items", kind="sparse_core", rows=1000, dim=16, cores=cores)
    checkpoint = open_checkpoint(step(tmp_path, SPEC_TEXT, leaves=leaves))
    rows = TrainedRows(trained, None, True, "users.txt")
    statements = Statements(layouts={"users": stated})

    (table,) = recognize(checkpoint, statements, {"users": rows}).tables

    assert table.layout == SparseCore(16, 120, 0, 0)
    assert table.proof is not None
    assert table.proof.decisive
    with pytest.raises(NotConvertible, match="contradicts what the checkpoint records"):
        recognize(checkpoint, statements)
    with pytest.raises(
        NotConvertible, match=r"'users': its layout \(8 cores\) contradicts the ids"
    ):
        recognize(checkpoint, Statements(), {"users": rows})


@pytest.mark.parametrize(
    ("spec", "problem", "what"),
    [
        (
            SPEC_TEXT.replace("stack_name", "row_order: 1 stack_name"),
            CheckpointError,
            r"proto\.pbtxt: written by a newer release than jax-tpu-embedding .*unknown: "
            r"StackedTableSpecProto\.row_order\.",
        ),
        (SPEC_TEXT[:-2], CheckpointError, r"proto\.pbtxt is no layout of the stacks"),
        (SPEC_TEXT.replace("1000", "-1"), CheckpointError, r"proto\.pbtxt is no layout"),
        (SPEC_TEXT.replace("1920", "3840"), NotConvertible, "its variable has 1920"),
    ],
)
def test_recorded_layout_that_is_damaged_or_contradicts_the_stack_is_an_error(
    tmp_path: Path, spec: str, problem: type[Exception], what: str
) -> None:
    with pytest.raises(problem, match=what):
        recognize(open_checkpoint(step(tmp_path, spec)))


def test_damaged_layout_of_a_checkpoint_without_stacks_is_not_read(tmp_path: Path) -> None:
    write_item(tmp_path / "7" / "model", {"params.user.embedding": STACK})
    (tmp_path / "7" / "spec").mkdir()
    (tmp_path / "7" / "spec" / "proto.pbtxt").write_text(SPEC_TEXT[:-2])
    inventory = recognize(open_checkpoint(tmp_path / "7"))
    assert [table.name for table in inventory.tables] == ["user"]


def test_stack_that_two_items_hold_needs_a_layout_file(tmp_path: Path) -> None:
    root = step(tmp_path, SPEC_TEXT)
    write_item(root / "7" / "copy", LEAVES)
    inventory = recognize(open_checkpoint(root))
    assert (inventory.tables, [rejected_table.name for rejected_table in inventory.rejected]) == (
        (),
        ["users_items"] * 2,
    )


def test_recorded_layouts_of_several_items_are_taken_together(tmp_path: Path) -> None:
    root = step(tmp_path, SPEC_TEXT.replace("users_items", "others"))
    (root / "7/more").mkdir()
    (root / "7/more/proto.pbtxt").write_text(SPEC_TEXT)
    inventory = recognize(open_checkpoint(root))
    assert [table.name for table in inventory.tables] == ["items", "users"]


def test_recorded_layout_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(step(tmp_path, SPEC_TEXT))
    monkeypatch.setattr(recorded_stacks, "FILE_BYTES_MAX", len(SPEC_TEXT))
    assert len(recognize(checkpoint).tables) == 2
    monkeypatch.setattr(recorded_stacks, "FILE_BYTES_MAX", len(SPEC_TEXT) - 1)
    file = tmp_path / "7/embedding_spec/proto.pbtxt"
    with pytest.raises(CheckpointError) as error:
        recognize(checkpoint)
    assert str(error.value) == f"{file} cannot be read: it has more than {len(SPEC_TEXT) - 1} bytes"
    file.unlink()
    file.mkdir()
    monkeypatch.undo()
    with pytest.raises(CheckpointError) as error:
        recognize(checkpoint)
    assert str(error.value) == f"{file} cannot be read: Is a directory"
