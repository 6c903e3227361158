"""What the names of a PyTorch state dict show."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint


def inventory(directory: Path, *names: str, shape: tuple[int, ...] = (4, 2)) -> Inventory:
    """Returns what is found in a file of float32 tensors of one shape."""
    size = 4 * shape[0] * shape[-1]
    tensors = {
        name: {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [size * offset, size * offset + size],
        }
        for offset, name in enumerate(names)
    }
    header = json.dumps(tensors).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(size * len(names))
    (directory / "a.safetensors").write_bytes(content)
    return recognize(open_checkpoint(directory / "a.safetensors"))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ebc.embedding_bags.users.weight", "users"),
        ("model.sparse.ec.embeddings.items.weight", "items"),
        ("embedding_bags.users.weight", "users"),
    ],
)
def test_table_of_torchrec_is_recognized_by_its_module(tmp_path: Path, key: str, name: str) -> None:
    (table,) = inventory(tmp_path, key, "over.linear.weight").tables
    assert (table.name, table.key, table.origin) == (name, key, "TorchRec")


@pytest.mark.parametrize(
    "key",
    [
        "users.weight",
        "ebc.embedding_bags.users.bias",
        "my_embeddings.users.weight",
        "embeddings.weight",
    ],
)
def test_weight_of_another_module_is_a_candidate(tmp_path: Path, key: str) -> None:
    checkpoint_inventory = inventory(tmp_path, key)
    assert (
        checkpoint_inventory.tables,
        [entry.key for entry in checkpoint_inventory.candidates],
    ) == ((), [key])


def test_table_has_two_axes(tmp_path: Path) -> None:
    checkpoint_inventory = inventory(tmp_path, "embedding_bags.users.weight", shape=(4, 1, 2))
    assert checkpoint_inventory.tables == ()


def test_tables_of_one_name_are_called_by_their_modules(tmp_path: Path) -> None:
    keys = ["a.embeddings.users.weight", "b.embedding_bags.users.weight"]
    assert [table.name for table in inventory(tmp_path, *keys).tables] == [
        "a.embeddings.users",
        "b.embedding_bags.users",
    ]


USERS = "model.ebc.embedding_bags.users.weight"


@pytest.mark.parametrize(
    ("state", "name", "owner"),
    [
        (f"optim.state.{USERS}.exp_avg", "exp_avg", USERS),
        (f"optimizer.state.{USERS}.users.momentum1", "users.momentum1", USERS),
        (f"optimizers.0.state.{USERS}.exp_avg", "exp_avg", USERS),
        ("fused_optimizer.state.ebc.embedding_bags.users.weight.exp_avg", "exp_avg", USERS),
        ("optim.state.other.weight.exp_avg", "exp_avg", ""),
        ("optim.state.exp_avg", "exp_avg", ""),
    ],
)
def test_state_of_an_optimizer_is_of_the_variable_that_it_repeats(
    tmp_path: Path, state: str, name: str, owner: str
) -> None:
    checkpoint_inventory = inventory(tmp_path, USERS, state)
    assert [(slot.name, slot.key, slot.trained_key) for slot in checkpoint_inventory.slots] == [
        (name, state, owner)
    ]
    assert [table.key for table in checkpoint_inventory.tables] == [USERS]


def test_state_that_is_called_like_a_table_is_none(tmp_path: Path) -> None:
    state = "optim.state.ebc.embedding_bags.users.weight"
    checkpoint_inventory = inventory(tmp_path, USERS, state)
    assert [table.key for table in checkpoint_inventory.tables] == [USERS]
    assert [slot.key for slot in checkpoint_inventory.slots] == [state]


def test_quantized_table_is_named_as_such_and_its_scales_are_no_tables(tmp_path: Path) -> None:
    table = "ebc.embedding_bags.users.weight"
    checkpoint_inventory = inventory(
        tmp_path, table, f"{table}_qscale", f"{table}_qbias", "over.weight"
    )
    assert checkpoint_inventory.tables == ()
    assert [entry.key for entry in checkpoint_inventory.candidates] == ["over.weight"]
    reasons = {rejected.name: rejected.reason for rejected in checkpoint_inventory.rejected}
    assert sorted(reasons) == ["users", "users_qbias", "users_qscale"]
    assert reasons["users"].startswith("its rows are quantized (float32, with a scale and a bias")
    assert reasons["users_qscale"] == "it scales 'users'"
