from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint
from tests.export.checkpoint.orbax_trees import write_item

TABLE = np.zeros((20, 4), np.float32)


def found_in(directory: Path, *paths: str) -> Inventory:
    write_item(directory / "ckpt", dict.fromkeys(paths, TABLE))
    return recognise(open_checkpoint(directory / "ckpt"))


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
    found = found_in(tmp_path, path, "params.dense.kernel")
    assert [(table.name, table.key, table.origin) for table in found.tables] == [
        (name, path, origin)
    ]
    assert [entry.key for entry in found.candidates] == ["params.dense.kernel"]


def test_layers_of_one_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    found = found_in(tmp_path, "query.ids.embedding", "candidate.ids.embedding")
    assert [table.name for table in found.tables] == ["candidate.ids", "query.ids"]


@pytest.mark.parametrize(
    ("state", "name", "of"),
    [
        ("opt_state.0.mu.user.embedding", "mu", "params.user.embedding"),
        ("opt_state.0.mu.params.user.embedding", "mu", "params.user.embedding"),
        ("optimizer.opt_state.0.nu.user.embedding.value", "nu", "params.user.embedding"),
        ("optimizer_variables.adam.user_embedding_momentum", "momentum", "params.user.embedding"),
        ("optimizer_variables.adam.other_embedding_momentum", "other_embedding_momentum", ""),
        ("opt_state.hidden", "hidden", ""),
    ],
)
def test_state_of_an_optimizer_is_a_slot_though_it_has_the_shape_of_tables(
    tmp_path: Path, state: str, name: str, of: str
) -> None:
    found = found_in(tmp_path, "params.user.embedding", state)
    assert [(slot.name, slot.key, slot.of) for slot in found.slots] == [(name, state, of)]
    assert [table.key for table in found.tables] == ["params.user.embedding"]


@pytest.mark.parametrize("slot", ["slot.0", "slot.accumulator"])
def test_stack_under_the_name_of_the_documentation_is_no_plain_table(
    tmp_path: Path, slot: str
) -> None:
    table = "embedding.genres_movies_users.table"
    found = found_in(tmp_path, table, f"embedding.genres_movies_users.{slot}", "head.table")
    assert [(refused.name, refused.key) for refused in found.refused] == [
        ("genres_movies_users", table)
    ]
    assert [each.of for each in found.slots] == [table]
    # Without slot variables it may be any program's matrix.
    assert [entry.key for entry in found.candidates] == ["head.table"]


@pytest.mark.parametrize("table", ["embedding.users.table", "item.embedding.users.table"])
def test_stack_of_the_documentation_without_slot_variables_is_no_plain_table(
    tmp_path: Path, table: str
) -> None:
    found = found_in(tmp_path, table, "users.table")
    assert [(refused.name, refused.key) for refused in found.refused] == [("users", table)]
    assert [entry.key for entry in found.candidates] == ["users.table"]


@pytest.mark.parametrize(
    ("slot", "name"),
    [
        ("sc_embedding_variables.users.slot.0", "slot 0"),
        ("emb.var:users:table:slot:accumulators", "accumulators"),
    ],
)
def test_slot_of_a_stack_is_called_as_its_path_says(tmp_path: Path, slot: str, name: str) -> None:
    table = slot.replace(".slot.0", ".table").removesuffix(":slot:accumulators")
    found = found_in(tmp_path, table, slot)
    assert [(each.name, each.of) for each in found.slots] == [(name, table)]
    assert [refused.name for refused in found.refused] == ["users"]


def test_slot_without_its_stack_is_any_matrix(tmp_path: Path) -> None:
    found = found_in(tmp_path, "head.slot.0")
    assert (found.slots, [entry.key for entry in found.candidates]) == ((), ["head.slot.0"])


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
    assert recognise(open_checkpoint(tmp_path / "ckpt")).step == step
