"""Stacks of several tables, cut into slices, are copied and verified: every row of every table, and
every crc. tests/laws/test_exported_tables.py has single tables of any layout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.arithmetic import ceil_div
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.layouts import (
    Layout,
    Mod,
    Plain,
    SparseCore,
    StoredOrder,
    stored_rows,
)
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import VerificationFailed
from export.tables.plan import WriteOptions
from export.verify.table_rows import verify_tables
from tests.differential.copies import copied, copied_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle

Values = np.ndarray[Any, Any]
Opened = tuple[Checkpoint, Inventory]


def stack(
    cores: int, rows: list[int], dim: int, columns: int, chips: int
) -> tuple[Values, dict[str, Values], list[Layout], list[Any]]:
    """Lays tables out as a SparseCore stack does, with garbage for padding; returns it, the tables
    and the slices.
    """
    random = np.random.default_rng(len(rows) * 100 + cores)
    offsets = np.cumsum([0, *(ceil_div(count, 8 * cores) * 8 for count in rows)]).tolist()
    core_rows = offsets[-1] + 3
    stored = random.standard_normal((cores * core_rows, columns)).astype(np.float32)
    tables = {}
    layouts = []
    for number, count in enumerate(rows):
        layout = SparseCore(cores, core_rows, offsets[number], number * (cores // chips) % cores)
        values = random.standard_normal((count, dim)).astype(np.float32)
        stored[stored_rows(layout, np.arange(count)), :dim] = values
        tables[f"t{number}"] = values
        layouts.append(layout)
    part = cores // chips * core_rows
    boxes = [[(chip * part, part), (0, -1)] for chip in range(chips)]
    return stored, tables, list(layouts), boxes


def opened(
    directory: Path,
    stored: Values,
    table_values: dict[str, Values],
    layouts: list[Layout],
    boxes: Any,
) -> Opened:
    """Writes a checkpoint of one variable in slices; returns it and its tables."""
    write_bundle(directory / "ckpt", {"stack": stored}, boxes={"stack": boxes}, files=2)
    checkpoint = open_checkpoint(directory)
    actual = recognize(checkpoint, {"stack": "stack"})
    specs = [
        replace(actual.tables[0], name=name, rows=len(values), dim=values.shape[1], layout=layout)
        for (name, values), layout in zip(table_values.items(), layouts, strict=True)
    ]
    return checkpoint, replace(actual, tables=tuple(specs))


@settings(max_examples=50)
@given(
    chips=st.sampled_from([1, 2, 4]),
    per_chip=st.integers(1, 3),
    rows=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    dim=st.integers(1, 8),
    padding=st.sampled_from([0, 3]),
    writing=st.builds(
        WriteOptions,
        st.sampled_from([None, 7, 24]),
        st.sampled_from([None, None, "int8", "float16"]),
    ),
    budget=st.sampled_from([200, 4000, 1 << 20]),
    wanted=st.integers(1, 3),
)
def test_sparse_core_stack_any_shape_gives_every_table_and_every_crc(
    chips: int,
    per_chip: int,
    rows: list[int],
    dim: int,
    padding: int,
    writing: WriteOptions,
    budget: int,
    wanted: int,
) -> None:
    stored, tables, layouts, boxes = stack(chips * per_chip, rows, dim, dim + padding, chips)
    chosen = list(tables)[:wanted]
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, inventory = opened(Path(directory), stored, tables, layouts, boxes)
        out = Path(directory, "out")
        written = copied(checkpoint, inventory, out, chosen, writing=writing, budget_bytes=budget)
    if writing.dtype is None:
        assert written == {name: tables[name].tobytes() for name in chosen}


def mod(lanes: int, rows: int) -> Mod:
    """Returns the layout of rows that are dealt to lanes, which lie one behind the other."""
    sizes = [len(range(lane, rows, lanes)) for lane in range(lanes)]
    return Mod((0, *np.cumsum(sizes)[:-1].tolist()))


LAYOUTS: dict[type[Layout], Callable[[int, int, int], Layout]] = {
    Plain: lambda lanes, rows, number: Plain(),
    Mod: lambda lanes, rows, number: mod(lanes, rows),
    SparseCore: lambda lanes, rows, number: SparseCore(lanes, 70, number % 6, number % lanes),
}
"""Each layout, by the number of its lanes, the rows of a table, and a number."""


def test_layouts_are_all_that_there_are() -> None:
    assert LAYOUTS.keys() == set(get_args(Layout))


@pytest.mark.parametrize("kind", LAYOUTS)
@settings(max_examples=30)
@given(lanes=st.integers(1, 9), rows=st.integers(1, 60), number=st.integers(0, 40))
def test_stored_order_is_the_order_of_the_stored_rows(
    kind: type[Layout], lanes: int, rows: int, number: int
) -> None:
    layout = LAYOUTS[kind](lanes, rows, number)
    order = StoredOrder(layout, rows)
    ranks = np.arange(rows)
    expected = np.argsort(stored_rows(layout, ranks))
    np.testing.assert_array_equal(order.rows_at(ranks), expected)
    np.testing.assert_array_equal(order.ranks_of(expected), ranks)
    order = StoredOrder(layout, rows, descending=True)
    np.testing.assert_array_equal(order.rows_at(ranks), expected[::-1])
    np.testing.assert_array_equal(order.ranks_of(expected[::-1]), ranks)


@pytest.mark.parametrize("rows", [None, 10])
@pytest.mark.parametrize(
    "wrong",
    [{"rotation": 1}, {"offset": 1}, {"cores": 2, "core_rows": 70}, {"rotation": 0, "offset": 8}],
)
def test_verify_tables_stack_read_by_another_layout_is_found(
    tmp_path: Path, wrong: dict[str, int], rows: int | None
) -> None:
    checkpoint, inventory = opened(tmp_path, *stack(4, [30, 20], 5, 8, 2))
    entry = copied_tables(checkpoint, inventory, tmp_path / "out")["t1"]
    message = entry.model_copy(update={"source": entry.source.model_copy(update=wrong)})
    with pytest.raises(VerificationFailed, match="'t1'"):
        verify_tables(checkpoint, tmp_path / "out", {"t1": message}, rows)
