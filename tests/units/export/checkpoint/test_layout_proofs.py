"""What ids of training show of a layout, and what they cannot show; the law for any stack is in
tests/laws/test_layout_proofs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.checkpoint import slot_marks
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements, TableSpec
from export.checkpoint.layouts import Mod, Plain, SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.trained_rows import TrainedRows
from export.errors import NotConvertible
from tests.laws.trained_stacks import DIM, Stack, TrainedTable, packed, train
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle

Ids = dict[str, TrainedRows]


def ids(rows: Any, counts: Any = None, *, all_trained: bool = True) -> TrainedRows:
    known_counts = None if counts is None else np.asarray(counts, np.float64)
    return TrainedRows(np.asarray(rows, np.int64), known_counts, all_trained, "ids.txt")


def trained_table(counts: Any, optimizer: str = "adagrad", seed: int = 1) -> TrainedTable:
    return train(np.random.default_rng(seed), optimizer, np.asarray(counts, np.int64))


def some(rows: int, share: float, seed: int = 2) -> NDArray[np.int64]:
    """How often training read each row: some once, the others never."""
    return (np.random.default_rng(seed).random(rows) < share).astype(np.int64)


def write_stack(
    directory: Path,
    *tables: TrainedTable,
    cores: int = 8,
    optimizer: str = "adagrad",
    slots: dict[str, NDArray[Any]] | None = None,
) -> Path:
    """Writes tables as a stack in which each is turned by 2 cores more than the one before."""
    rows = [len(table.values) for table in tables]
    rotations = [2 * number % cores for number in range(len(rows))]
    stack = Stack(optimizer, tables, packed(rows, cores, rotations))
    write_bundle(directory / "ckpt", stack.variables() | (slots or {}))
    return directory


def derived(checkpoint: Path, trained: Ids, **rows: int) -> Inventory:
    layouts = {
        name: StatedTable(key="stack", kind="derive", rows=count, dim=DIM)
        for name, count in rows.items()
    }
    return recognize(open_checkpoint(checkpoint), Statements(layouts=layouts), trained)


def rejected(checkpoint: Path, trained: Ids, **rows: int) -> str:
    with pytest.raises(NotConvertible) as failure:
        derived(checkpoint, trained, **rows).table(next(iter(rows)))
    return str(failure.value)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "ftrl"])
def test_counts_tell_the_layout_where_training_read_every_row(
    tmp_path: Path, optimizer: str
) -> None:
    counts = np.random.default_rng(4).zipf(1.5, 256).clip(1, 50)
    write_stack(tmp_path, trained_table(counts, optimizer), optimizer=optimizer)

    (table,) = derived(tmp_path, {"t": ids(range(256), counts)}, t=256).tables

    assert table.layout == SparseCore(8, 32, 0, 0)
    assert table.proof is not None
    assert (table.proof.agree, table.proof.other_agree) == (256, 256)
    assert table.proof.correlation is not None
    assert table.proof.correlation > 0.8
    assert "and their counts correlate by 0." in table.note
    message = rejected(tmp_path, {"t": ids(range(256))}, t=256)
    assert "table 't': more than one layout explains the ids of training (ids.txt)" in message
    assert "(100% of all rows were trained)" in message


def test_counts_tell_nothing_if_the_optimizer_keeps_no_accumulators(tmp_path: Path) -> None:
    counts = np.random.default_rng(4).zipf(1.5, 256).clip(1, 50)
    write_stack(tmp_path, trained_table(counts, "momentum"), optimizer="momentum")
    message = rejected(tmp_path, {"t": ids(range(256), counts)}, t=256)
    assert "the optimizer keeps no accumulators (Momentum)" in message


def test_vocabulary_in_the_order_of_frequency_tells_the_layout(tmp_path: Path) -> None:
    counts = 2_000_000 // np.arange(1, 201)
    counts[150:] = 0  # words that the vocabulary has, and training never read
    # Sums of the squares of as many gradients as the count of each id.
    sums = 2 * np.random.default_rng(5).gamma(np.repeat(counts[:, None] / 2, DIM, axis=1))
    slots = {"Adagrad": (0.1 + sums).astype(np.float32)}
    write_stack(tmp_path, TrainedTable(np.zeros((200, DIM), np.float32), slots, counts))
    ranks = ids(range(200), np.arange(200, 0, -1), all_trained=False)
    (table,) = derived(tmp_path, {"t": ranks}, t=200).tables
    assert table.layout == SparseCore(8, 32, 0, 0)


def test_small_tables_of_a_stack_are_placed_among_the_large_ones(tmp_path: Path) -> None:
    tables = [trained_table(np.ones(3)), trained_table(some(300, 0.4)), trained_table(np.ones(2))]
    write_stack(tmp_path, *tables)
    trained = {name: ids(entry.trained) for name, entry in zip("abc", tables, strict=True)}
    inventory = derived(tmp_path, trained, a=3, b=300, c=2)
    positions = [(table.layout.offset, table.layout.rotation) for table in inventory.tables]  # type: ignore[union-attr]
    assert positions == [(0, 0), (8, 2), (48, 4)]


def test_table_that_no_ids_tell_is_left_out_of_a_derived_stack(tmp_path: Path) -> None:
    tables = [trained_table(some(200, 0.4)), trained_table(some(300, 0.4))]
    write_stack(tmp_path, *tables)
    inventory = derived(tmp_path, {"b": ids(tables[1].trained)}, a=200, b=300)
    assert [table.name for table in inventory.tables] == ["b"]
    assert inventory.tables[0].layout == SparseCore(8, 72, 32, 2)
    with pytest.raises(NotConvertible, match=r"'a'.* cannot be proved without ids that occur in"):
        inventory.table("a")


def test_large_slot_variables_are_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the rows, so that not all rotations are considered."""
    table = trained_table(some(39_990, 0.3))
    write_stack(tmp_path, table)
    rows_read: list[int] = []
    monkeypatch.setattr(slot_marks, "BYTES_MAX", 500_000)
    read = slot_marks.SlotReader.read

    def counted(reader: slot_marks.SlotReader, rows: NDArray[np.int64]) -> slot_marks.SlotMarks:
        marks = read(reader, rows)
        rows_read.append(len(marks.touched))
        return marks

    monkeypatch.setattr(slot_marks.SlotReader, "read", counted)
    (inventory,) = derived(tmp_path, {"t": ids(table.trained)}, t=39_990).tables
    assert inventory.layout == SparseCore(8, 5000, 0, 0)
    assert inventory.proof is not None
    assert inventory.proof.ids == inventory.proof.agree == 64
    assert len(rows_read) == 1
    assert rows_read[0] < 20_000


def write_partitions(directory: Path, mod: bool, rows: int = 203, partitions: int = 3) -> Path:
    """Writes a table as TF1 saves it in partitions, by `mod` or `div`."""
    table = trained_table(some(rows, 0.4))
    order = np.arange(rows)
    if mod:
        order = np.concatenate([np.arange(part, rows, partitions) for part in range(partitions)])
    sizes = [len(range(part, rows, partitions)) for part in range(partitions)]
    boxes: list[Box] = [[(sum(sizes[:part]), size), (0, -1)] for part, size in enumerate(sizes)]
    variables = {"t/embeddings": table.values[order]}
    variables["t/embeddings/Adagrad"] = table.slots["Adagrad"][order]
    write_bundle(directory / "ckpt", variables, boxes=dict.fromkeys(variables, boxes))
    return directory


@pytest.mark.parametrize("mod", [True, False])
def test_ids_of_training_tell_mod_from_div(tmp_path: Path, mod: bool) -> None:
    checkpoint = open_checkpoint(write_partitions(tmp_path, mod))
    trained = {"t": ids(np.flatnonzero(some(203, 0.4)))}
    layout = {"t": StatedTable(key="t/embeddings", kind="derive")}
    (table,) = recognize(checkpoint, Statements(layouts=layout), trained).tables
    assert table.layout == (Mod((0, 68, 136)) if mod else Plain())
    by_mod = Statements(mod=("t",))
    by_div = Statements()
    (table,) = recognize(checkpoint, by_mod if mod else by_div, trained).tables
    assert table.proof is not None
    assert table.proof.decisive
    with pytest.raises(NotConvertible, match="contradicts the ids of training"):
        recognize(checkpoint, by_div if mod else by_mod, trained)


BAD_IDS: dict[str, tuple[Callable[[TrainedTable], TrainedRows], str]] = {
    "of a larger table": (
        lambda table: ids([3, 200, 300]),
        "table 't': 2 of 3 trained ids (ids.txt) read rows that it does not have, such as row 200 "
        "of 200; ids of this table that occurred in training were expected",
    ),
    "of another feature": (
        lambda table: ids(np.flatnonzero(some(200, 0.3, seed=9))),
        "table 't': no layout explains the ids of training (ids.txt): at best, ",
    ),
    "too few": (
        lambda table: ids(table.trained[:3]),
        "table 't': more than one layout explains the ids of training (ids.txt): 3 of 3",
    ),
    "of a sorted file, with the counts in another order": (
        lambda table: ids(table.trained, -table.counts[table.trained] + 60),
        "table 't': the counts of the trained ids (ids.txt) contradict the accumulators of their "
        "rows: their correlation is -0.",
    ),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_ids_that_cannot_be_those_of_training_are_rejected(case: str, tmp_path: Path) -> None:
    counts = some(200, 0.7) * np.random.default_rng(3).integers(1, 50, 200)
    table = trained_table(counts)
    write_stack(tmp_path, table)
    wrong, message = BAD_IDS[case]
    assert message in rejected(tmp_path, {"t": wrong(table)}, t=200)


def test_ids_that_read_the_row_after_their_own_contradict_a_table_in_order(tmp_path: Path) -> None:
    table = trained_table(some(200, 0.4))
    variables = {"t/embeddings": table.values, "t/embeddings/Adagrad": table.slots["Adagrad"]}
    write_bundle(tmp_path / "ckpt", variables)
    checkpoint = open_checkpoint(tmp_path)
    (inventory,) = recognize(checkpoint, Statements(), {"t": ids(table.trained)}).tables
    assert inventory.note.startswith("its layout was compared with trained ids: ")
    with pytest.raises(NotConvertible, match="no layout explains the ids of training"):
        recognize(checkpoint, Statements(), {"t": ids((table.trained + 1) % 200)})


def test_slot_variables_that_were_reset_prove_nothing(tmp_path: Path) -> None:
    table = trained_table(some(200, 0.4))
    reset = np.full((256, DIM), 0.1, np.float32)
    write_stack(tmp_path, table, slots={"stack/Adagrad": reset})
    assert rejected(tmp_path, {"t": ids(table.trained)}, t=200) == (
        "verify.trained_ids: all 256 rows that were read of the slot variables of 'stack' "
        "(Adagrad) have one value, as if the optimizer had been reset: nothing shows which rows "
        "training read; name a checkpoint with the optimizer's state, or leave the trained ids out"
    )


def test_checkpoint_without_slot_variables_proves_nothing(tmp_path: Path) -> None:
    table = trained_table(some(200, 0.4))
    write_bundle(tmp_path / "ckpt", {"stack": np.zeros((256, DIM), np.float32)})
    message = (
        "its layout cannot be proved, as the checkpoint has no slot variables of 'stack', which "
        "show the rows that training changed; state the layout and accept it, or give recorded "
        "outputs (verify.expected)"
    )
    trained = {"t": ids(table.trained)}
    assert message in rejected(tmp_path, trained, t=200)
    assert message in rejected(tmp_path, {}, t=200)
    stated = {"t": StatedTable(key="stack", kind="sparse_core", rows=200, dim=DIM, cores=8)}
    with pytest.raises(NotConvertible) as failure:
        recognize(open_checkpoint(tmp_path), Statements(layouts=stated), trained)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"a": {"kind": "derive", "rows": 100}, "b": {"kind": "derive"}},
            "table 'b' is one of 2 in 'stack', so it needs 'rows' and 'dim'",
        ),
        (
            {"a": {"kind": "derive", "rows": 100}, "b": {"kind": "plain"}},
            "of the tables of 'stack', some are to be derived and 'b' is stated",
        ),
        ({"a": {"kind": "derive", "rows": 300}}, "has the shape [300, 8], its variable 'stack'"),
        (
            {name: {"kind": "derive", "rows": 200} for name in "ab"},
            "variable 'stack' of 256 rows cannot hold tables of 200, 200 rows as SparseCores or",
        ),
    ],
)
def test_layout_file_that_cannot_be_derived_is_rejected(
    tmp_path: Path, tables: dict[str, dict[str, Any]], message: str
) -> None:
    write_stack(tmp_path, trained_table(some(200, 0.4)))
    layouts = {name: StatedTable(key="stack", **fields) for name, fields in tables.items()}
    trained = dict.fromkeys(tables, ids([1, 2]))
    with pytest.raises(NotConvertible) as failure:
        recognize(open_checkpoint(tmp_path), Statements(layouts=layouts), trained)
    assert message in str(failure.value)


def test_a_statement_that_ids_do_not_decide_is_neither_proved_nor_contradicted(
    tmp_path: Path,
) -> None:
    """Training read the first rows, whole rounds over the cores: any rotation explains them."""
    counts = np.arange(256) < 64
    write_stack(tmp_path, trained_table(counts))

    def stated(rotation: int) -> TableSpec:
        layout = StatedTable(
            key="stack", kind="sparse_core", rows=256, dim=DIM, cores=8, rotation=rotation
        )
        statements = Statements(layouts={"t": layout})
        inventory = recognize(open_checkpoint(tmp_path), statements, {"t": ids(range(64))})
        return inventory.table("t")

    for rotation in (0, 3):
        table = stated(rotation)
        assert table.proof is not None
        assert not table.proof.decisive
        assert table.note.endswith("reaches 64, which does not decide it")
    message = rejected(tmp_path, {"t": ids(range(64))}, t=256)
    assert "64 of 64 read rows that training changed by 8 cores" in message
