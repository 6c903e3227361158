from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint
from tests.units.export.checkpoint.orbax_trees import write_item

TABLE = np.zeros((20, 4), np.float32)


def inventory_of(directory: Path, *paths: str) -> Inventory:
    write_item(directory / "ckpt", dict.fromkeys(paths, TABLE))
    return recognize(open_checkpoint(directory / "ckpt"))


@pytest.mark.parametrize(
    ("path", "name", "origin"),
    [
        ("params.user.embedding", "user", "Flax Embed"),
        ("model.user.embedding.value", "user", "Flax Embed"),
        ("trainable_variables.user.embeddings", "user", "Keras Embedding"),
        ("embedding", "embedding", "Flax Embed"),
    ],
)
def test_leaf_that_layers_name_by_default_is_a_table(
    tmp_path: Path, path: str, name: str, origin: str
) -> None:
    inventory = inventory_of(tmp_path, path, "params.dense.kernel")
    assert [(table.name, table.key, table.origin) for table in inventory.tables] == [
        (name, path, origin)
    ]
    assert [entry.key for entry in inventory.candidates] == ["params.dense.kernel"]


def test_layers_of_one_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "query.ids.embedding", "candidate.ids.embedding")
    assert [table.name for table in inventory.tables] == ["candidate.ids", "query.ids"]


@pytest.mark.parametrize(
    ("state", "name", "owner"),
    [
        ("opt_state.0.mu.user.embedding", "mu", "params.user.embedding"),
        ("opt_state.0.mu.params.user.embedding", "mu", "params.user.embedding"),
        ("optimizer.opt_state.0.nu.user.embedding.value", "nu", "params.user.embedding"),
        ("optimizer_variables.adam.user_embedding_momentum", "momentum", "params.user.embedding"),
        ("optimizer_variables.adam.other_embedding_momentum", "other_embedding_momentum", ""),
        (
            "optimizer_variables.adam.user_embedding_momentum.value",
            "momentum",
            "params.user.embedding",
        ),
        ("opt_state.hidden", "hidden", ""),
        ("opt_state.0.count.value", "count", ""),
        ("opt_state.user.embedding", "user", "params.user.embedding"),
        ("opt.mu.embedding", "mu", "params.user.embedding"),
        ("state.opt_states.mu.other.embedding", "other", "params.user.embedding"),
    ],
)
def test_state_of_an_optimizer_is_a_slot_though_it_has_the_shape_of_tables(
    tmp_path: Path, state: str, name: str, owner: str
) -> None:
    inventory = inventory_of(tmp_path, "params.user.embedding", state)
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        (name, state, owner)
    ]
    assert [table.key for table in inventory.tables] == ["params.user.embedding"]


@pytest.mark.parametrize("slot", ["slot.0", "slot.accumulator"])
def test_stack_under_the_name_of_the_documentation_is_no_plain_table(
    tmp_path: Path, slot: str
) -> None:
    table = "embedding.genres_movies_users.table"
    inventory = inventory_of(tmp_path, table, f"embedding.genres_movies_users.{slot}", "head.table")
    assert [(rejected.name, rejected.key) for rejected in inventory.rejected] == [
        ("genres_movies_users", table)
    ]
    assert [slot.trained_key for slot in inventory.slots] == [table]
    # Without slot variables it may be any program's matrix.
    assert [entry.key for entry in inventory.candidates] == ["head.table"]


@pytest.mark.parametrize("table", ["embedding.users.table", "item.embedding.users.table"])
def test_stack_of_the_documentation_without_slot_variables_is_no_plain_table(
    tmp_path: Path, table: str
) -> None:
    inventory = inventory_of(tmp_path, table, "users.table")
    assert [(rejected.name, rejected.key) for rejected in inventory.rejected] == [("users", table)]
    assert [entry.key for entry in inventory.candidates] == ["users.table"]


@pytest.mark.parametrize(
    ("slot", "name"),
    [
        ("sc_embedding_variables.users.slot.0", "slot 0"),
        ("emb.var:users:table:slot:accumulators", "accumulators"),
    ],
)
def test_slot_of_a_stack_is_called_as_its_path_says(tmp_path: Path, slot: str, name: str) -> None:
    table = slot.replace(".slot.0", ".table").removesuffix(":slot:accumulators")
    inventory = inventory_of(tmp_path, table, slot)
    assert [(slot.name, slot.trained_key) for slot in inventory.slots] == [(name, table)]
    assert [rejected.name for rejected in inventory.rejected] == ["users"]


def test_stack_under_any_name_is_told_by_its_slot_variables(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "head.users.table", "head.users.slot.0", "head.items.table")
    assert [(rejected_table.name, rejected_table.key) for rejected_table in inventory.rejected] == [
        ("users", "head.users.table")
    ]
    assert [entry.key for entry in inventory.candidates] == ["head.items.table"]


def test_slot_without_its_stack_is_any_matrix(tmp_path: Path) -> None:
    inventory = inventory_of(tmp_path, "head.slot.0")
    assert (inventory.slots, [entry.key for entry in inventory.candidates]) == ((), ["head.slot.0"])


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({"params.count": 7}, None),
        ({"opt_state.0.count": 7}, 7),
        ({"a.step": 3, "opt_state.0.count": 7}, 3),
        ({"params.a.step": 4, "step": 3}, 3),
    ],
)
def test_step_is_the_programs_own_or_else_its_optimizers(
    tmp_path: Path, counts: dict[str, int], step: int | None
) -> None:
    leaves = {path: np.array(count) for path, count in counts.items()}
    write_item(tmp_path / "ckpt", leaves)
    assert recognize(open_checkpoint(tmp_path / "ckpt")).step == step


def test_state_of_a_tail_that_several_weights_have_is_of_none(tmp_path: Path) -> None:
    weights = ["params.user.embedding", "params.item.embedding.value", "head.kernel"]
    states = ["opt_state.mu.embedding", "opt_state.mu.item.embedding", "opt_state.mu.head.kernel"]
    inventory = inventory_of(tmp_path, *weights, *states)
    assert [(slot.key, slot.name, slot.trained_key) for slot in inventory.slots] == [
        ("opt_state.mu.embedding", "embedding", ""),
        ("opt_state.mu.head.kernel", "mu", "head.kernel"),
        ("opt_state.mu.item.embedding", "mu", "params.item.embedding.value"),
    ]


@pytest.mark.parametrize(
    ("leaves", "tables"),
    [
        ({"params.embedding": (20, 4)}, ["params"]),
        ({"params.user.embedding": (20,)}, []),
        ({"params.user.embedding": (4, 5, 4)}, []),
        ({"params.user.embeddings": (20, 1)}, ["user"]),
        ({"params.user.my_embedding": (20, 4)}, []),
        ({"params.user.embedding.scale": (20, 4)}, []),
        ({"embedding.value": (20, 4)}, ["embedding"]),
    ],
)
def test_leaf_of_a_table_has_rows_and_columns(
    tmp_path: Path, leaves: dict[str, tuple[int, ...]], tables: list[str]
) -> None:
    write_item(
        tmp_path / "ckpt", {path: np.zeros(shape, np.float32) for path, shape in leaves.items()}
    )
    inventory = recognize(open_checkpoint(tmp_path / "ckpt"))
    assert [table.name for table in inventory.tables] == tables


@pytest.mark.parametrize(
    ("path", "stack"),
    [
        ("sc_embedding_variables.users.table", "users"),
        ("model.sc_embedding_variables.value.users.table", "users"),
        ("embed.embedding_table.a.b.table", "a.b"),
        ("var:users:table", "users"),
        ("emb.var:users:table", "users"),
        ("embedding.users.table", "users"),
        ("embeddings.users.table", ""),
        ("embedding.users.tables", ""),
        ("table", ""),
    ],
)
def test_stack_is_rejected_by_its_path(tmp_path: Path, path: str, stack: str) -> None:
    inventory = inventory_of(tmp_path, path)
    assert [(rejected_table.name, rejected_table.key) for rejected_table in inventory.rejected] == (
        [(stack, path)] if stack else []
    )
    assert [entry.key for entry in inventory.candidates] == ([] if stack else [path])


def test_stack_that_is_no_matrix_is_no_table(tmp_path: Path) -> None:
    path = "sc_embedding_variables.users.table"
    write_item(tmp_path / "ckpt", {path: TABLE[0]})
    inventory = recognize(open_checkpoint(tmp_path / "ckpt"))
    assert (inventory.rejected, [entry.key for entry in inventory.dense]) == ((), [path])


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({"global_step": 4}, 4),
        ({"step.value": 4}, 4),
        ({"iteration": 4}, None),
        ({"optimizer_variables.adam.iteration": 5, "opt_state.count": 6}, 5),
        ({"a.count": 6, "opt_state.iteration": 5}, 5),
        ({"steps": 3}, None),
        ({"a.b.step": 3, "ab.step": 4}, 4),
        ({"a.step": 3, "global_step": 4}, 3),
    ],
)
def test_step_is_the_shortest_of_the_leaves_that_are_called_so(
    tmp_path: Path, counts: dict[str, int], step: int | None
) -> None:
    write_item(tmp_path / "ckpt", {path: np.array(count) for path, count in counts.items()})
    assert recognize(open_checkpoint(tmp_path / "ckpt")).step == step


def test_step_is_a_single_integer(tmp_path: Path) -> None:
    leaves = {
        "step": np.array([3]),
        "a.step": np.array(4, np.float32),
        "a.b.step": np.array(5, np.int32),
    }
    write_item(tmp_path / "ckpt", leaves)
    assert recognize(open_checkpoint(tmp_path / "ckpt")).step == 5
