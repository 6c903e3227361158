"""Tables that a name of TF1 shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.name_tables import DIV_OR_MOD
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint
from tests.units.export.checkpoint.tensor_bundles import write_bundle

TABLE = np.zeros((8, 3), np.float32)


def inventory(directory: Path, variables: dict[str, Any], **options: Any) -> Inventory:
    write_bundle(directory / "c", variables, **options)
    return recognize(open_checkpoint(directory))


@pytest.mark.parametrize(
    ("key", "name", "origin"),
    [
        ("layer/user_embedding/embedding_weights", "user_embedding", "feature column"),
        ("user_embedding/embedding_weights", "user_embedding", "feature column"),
        ("model/user/embeddings", "user", "Keras Embedding"),
        ("user/embeddings", "user", "Keras Embedding"),
    ],
)
def test_table_is_called_by_its_column_or_layer(
    tmp_path: Path, key: str, name: str, origin: str
) -> None:
    (table,) = inventory(tmp_path, {key: TABLE, "dense/kernel": TABLE}).tables
    assert (table.name, table.key, table.origin, table.note) == (name, key, origin, "")


@pytest.mark.parametrize(
    "variables",
    [
        {"embeddings": TABLE},
        {"user/my_embeddings": TABLE},
        {"user/embeddings/bias": TABLE},
        {"user/embeddings": TABLE[0]},
        {"user/embeddings": TABLE[:0]},
        {"user/embeddings": TABLE.astype(np.int32)},
    ],
)
def test_variable_of_another_name_or_shape_is_no_table(
    tmp_path: Path, variables: dict[str, Any]
) -> None:
    assert inventory(tmp_path, variables).tables == ()


def test_table_may_have_one_row_or_one_column(tmp_path: Path) -> None:
    variables = {"row/embeddings": TABLE[:1], "column/embeddings": TABLE[:, :1]}
    assert [table.name for table in inventory(tmp_path, variables).tables] == ["column", "row"]


def test_slot_variable_is_no_table(tmp_path: Path) -> None:
    key = "training/Adam/user/embeddings"
    variables = {"user/embeddings": TABLE, f"{key}/m": TABLE, "x/embeddings/Adam": TABLE}
    checkpoint_inventory = inventory(tmp_path, variables)
    assert [table.name for table in checkpoint_inventory.tables] == ["user"]
    assert [slot.key for slot in checkpoint_inventory.slots] == [f"{key}/m"]


def test_tables_of_one_name_are_called_by_their_paths(tmp_path: Path) -> None:
    keys = ["a/x/user/embeddings", "b/user/embeddings", "item/embeddings"]
    checkpoint_inventory = inventory(tmp_path, dict.fromkeys(keys, TABLE))
    assert [table.name for table in checkpoint_inventory.tables] == ["a.x.user", "b.user", "item"]


@pytest.mark.parametrize(
    ("boxes", "note"),
    [
        ([[(0, 8), (0, -1)]], ""),
        ([[(0, 8), (0, 2)], [(0, 8), (2, 1)]], ""),
        ([[(0, 4), (0, -1)], [(4, 4), (0, -1)]], DIV_OR_MOD),
    ],
)
def test_table_that_is_cut_in_its_rows_has_a_note(tmp_path: Path, boxes: Any, note: str) -> None:
    key = "user/embeddings"
    (table,) = inventory(tmp_path, {key: TABLE}, boxes={key: boxes}).tables
    assert table.note == note
