"""Checkpoints that PyTorch itself wrote (torch.tar.xz, by write_torch.py), read and copied without
it: every table, bit for bit.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from tests.differential.copies import copied

BAGS = "model.sparse.ebc.embedding_bags"
KEYS = {
    "users": f"{BAGS}.users.weight",
    "items": f"{BAGS}.items.weight",
    "tags": "model.sparse.ec.embeddings.tags.weight",
}
STATE = f"optim.state.{KEYS['users']}.users.momentum1"
CASES = ("torch_distributed", "torch_safetensors")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cases, and the values of all tensors."""
    root = tmp_path_factory.mktemp("torch")
    with tarfile.open(Path(__file__).with_name("torch.tar.xz")) as archive:
        archive.extractall(root, filter="data")
    return root


@pytest.fixture(scope="module")
def values(written: Path) -> dict[str, bytes]:
    """The bytes of each tensor; of bfloat16 its 16 bits."""
    with np.load(written / "torch_values.npz") as file:
        return {name: np.ascontiguousarray(file[name]).tobytes() for name in file.files}


@pytest.mark.parametrize("case", CASES)
def test_tables_of_torchrec_are_recognized_by_name_and_copied(
    case: str, written: Path, values: dict[str, bytes], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / case)
    actual = recognize(checkpoint)
    assert (actual.storage, actual.step) == ("PyTorch", None)
    tables = {table.name: (table.key, table.dtype, table.origin) for table in actual.tables}
    assert tables == {
        "users": (KEYS["users"], "float32", "TorchRec"),
        "items": (KEYS["items"], "float32", "TorchRec"),
        "tags": (KEYS["tags"], "bfloat16", "TorchRec"),
    }
    assert [(slot.name, slot.key, slot.trained_key) for slot in actual.slots] == [
        ("users.momentum1", STATE, KEYS["users"])
    ]
    expected = {name: values[key] for name, key in KEYS.items()}
    assert copied(checkpoint, actual, tmp_path) == expected


def test_rows_that_torchrec_sharded_over_sparsecores_are_copied_in_the_order_of_ids(
    written: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / "torch_sparsecore")
    actual = recognize(checkpoint)
    users = actual.table("users")
    assert (users.rows, users.layout.kind) == (64, "sparse_core")
    assert "may be padding" in users.note
    assert {table.name: table.combiner for table in actual.tables} == {
        "users": "",
        **dict.fromkeys(("genres", "movies", "tags"), "mean"),
    }
    rows = {"users": np.arange(64.0, dtype=np.float32)[:, None].repeat(4, 1)}
    with np.load(written / "torch_sparsecore_values.npz") as file:
        rows |= file
    expected = {name: np.ascontiguousarray(values).tobytes() for name, values in rows.items()}
    assert copied(checkpoint, actual, tmp_path) == expected
