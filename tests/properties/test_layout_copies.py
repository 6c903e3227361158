"""Stacks and partitions, cut into slices in any way, copied task by task: every row of every table, and every crc."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore, stored_rows
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, VerificationFailed
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.tables.shards import Receipt, carry_out, check_sources, manifest_table
from export.verify.table_rows import verify_tables
from tests.export.checkpoint.bundles import write_bundle

Values = np.ndarray[Any, Any]


def stack(
    cores: int, rows: list[int], dim: int, columns: int, chips: int
) -> tuple[Values, dict[str, Values], list[Layout], list[Any]]:
    """Lays tables out as a SparseCore stack does, with garbage for padding; returns it, the tables and the slices."""
    random = np.random.default_rng(len(rows) * 100 + cores)
    offsets = np.cumsum([0, *(-(-count // (8 * cores)) * 8 for count in rows)]).tolist()
    core_rows = offsets[-1] + 3
    stored = random.standard_normal((cores * core_rows, columns)).astype(np.float32)
    tables, layouts = {}, []
    for which, count in enumerate(rows):
        layout = SparseCore(cores, core_rows, offsets[which], which * (cores // chips) % cores)
        values = random.standard_normal((count, dim)).astype(np.float32)
        stored[stored_rows(layout, np.arange(count)), :dim] = values
        tables[f"t{which}"] = values
        layouts.append(layout)
    part = cores // chips * core_rows
    boxes = [[(chip * part, part), (0, -1)] for chip in range(chips)]
    return stored, tables, list(layouts), boxes


def planned(
    directory: Path,
    stored: Values,
    held: dict[str, Values],
    layouts: list[Layout],
    boxes: Any,
    spoiled: bytes = b"",
    **how: Any,
) -> ExportPlan:
    write_bundle(directory / "ckpt", {"stack": stored}, boxes={"stack": boxes} if boxes else None, files=2)
    for path in directory.glob("*.data*"):
        data = path.read_bytes()
        if spoiled and spoiled in data:
            place = data.index(spoiled)
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    checkpoint = open_checkpoint(directory)
    found = recognise(checkpoint, {"stack": "stack"})
    specs = [
        replace(found.tables[0], name=name, rows=len(values), dim=values.shape[1], layout=layout)
        for (name, values), layout in zip(held.items(), layouts, strict=True)
    ]
    return plan_tables(checkpoint, replace(found, tables=tuple(specs)), directory / "out", **how)


def run(plan: ExportPlan, judged_by: Path | None = None) -> dict[str, bytes]:
    """Carries a plan out, lets the judge compare every row with the checkpoint in `judged_by`, and returns the rows."""
    receipts: list[Receipt] = [carry_out(task) for task in reversed(plan.work)]
    check_sources(plan, receipts)
    if judged_by is not None:
        pages = {table.spec.name: manifest_table(table, receipts) for table in plan.tables}
        root = Path(plan.tasks[0].directory)
        for rows in (None, 10):
            checks = verify_tables(open_checkpoint(judged_by), root, pages, rows)
            assert {name: check.rows for name, check in checks.items()} == {name: pages[name].rows for name in pages}
    return {
        table.spec.name: b"".join(Path(task.directory, task.file).read_bytes() for task in table.tasks)
        for table in plan.tables
    }


@settings(deadline=None, max_examples=80)
@given(
    chips=st.sampled_from([1, 2, 4]),
    per_chip=st.integers(1, 3),
    rows=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    dim=st.integers(1, 8),
    padding=st.sampled_from([0, 3]),
    writing=st.builds(Writing, st.sampled_from([None, 7, 24]), st.sampled_from([None, None, "int8", "float16"])),
    budget=st.sampled_from([200, 4000, 1 << 20]),
    wanted=st.integers(1, 3),
)
def test_sparse_core_stack_any_shape_gives_every_table_and_every_crc(
    chips: int, per_chip: int, rows: list[int], dim: int, padding: int, writing: Writing, budget: int, wanted: int
) -> None:
    stored, tables, layouts, boxes = stack(chips * per_chip, rows, dim, dim + padding, chips)
    chosen = list(tables)[:wanted]
    with tempfile.TemporaryDirectory() as directory:
        ways = dict.fromkeys(chosen, writing)
        plan = planned(
            Path(directory), stored, tables, layouts, boxes, tables=chosen, writing=ways, budget_bytes=budget
        )
        written = run(plan, Path(directory))
    if writing.dtype is None:
        assert written == {name: tables[name].tobytes() for name in chosen}
    assert plan.read_bytes == stored.nbytes


@pytest.mark.parametrize("at", ["table", "padding row", "padding column", "table that is left out"])
def test_sparse_core_stack_with_a_flipped_bit_anywhere_is_refused(tmp_path: Path, at: str) -> None:
    stored, tables, layouts, boxes = stack(4, [30, 20], 5, 8, 2)
    row = {
        "table": stored_rows(layouts[0], np.array([17]))[0],
        "padding row": len(stored) - 1,
        "padding column": stored_rows(layouts[0], np.array([17]))[0],
        "table that is left out": stored_rows(layouts[1], np.array([17]))[0],
    }[at]
    value = stored[row, 7 if at == "padding column" else 0].tobytes()
    plan = planned(tmp_path, stored, tables, layouts, boxes, spoiled=value, tables=["t0"])
    with pytest.raises(CheckpointError, match="do not match their checksum"):
        run(plan)


@pytest.mark.parametrize("rows", [None, 10])
@pytest.mark.parametrize(
    "wrong", [{"rotation": 1}, {"offset": 1}, {"cores": 2, "core_rows": 70}, {"rotation": 0, "offset": 8}]
)
def test_verify_tables_stack_read_by_another_layout_is_found(
    tmp_path: Path, wrong: dict[str, int], rows: int | None
) -> None:
    stored, tables, layouts, boxes = stack(4, [30, 20], 5, 8, 2)
    plan = planned(tmp_path, stored, tables, layouts, boxes)
    receipts = [carry_out(task) for task in plan.work]
    page = manifest_table(plan.tables[1], receipts)
    told = page.model_copy(update={"source": page.source.model_copy(update=wrong)})
    with pytest.raises(VerificationFailed, match="'t1'"):
        verify_tables(open_checkpoint(tmp_path), tmp_path / "out", {"t1": told}, rows)


@st.composite
def layouts_of(draw: st.DrawFn) -> tuple[Layout, int]:
    kind = draw(st.sampled_from(["plain", "mod", "sparse_core"]))
    if kind == "plain":
        return Plain(), draw(st.integers(1, 60))
    lanes = draw(st.integers(1, 12))
    if kind == "mod":
        rows = draw(st.integers(lanes, 60))
        held = [len(range(lane, rows, lanes)) for lane in range(lanes)]
        return Mod(tuple(int(start) for start in np.cumsum([0, *held[:-1]]))), rows
    rows, offset = draw(st.integers(1, 60)), draw(st.integers(0, 5))
    return SparseCore(lanes, offset + 60 + draw(st.integers(0, 5)), offset, draw(st.integers(0, lanes - 1))), rows


def by_definition(layout: Layout, row: int) -> int:
    if isinstance(layout, Plain):
        return row
    if isinstance(layout, Mod):
        return layout.starts[row % len(layout.starts)] + row // len(layout.starts)
    return (row + layout.rotation) % layout.cores * layout.core_rows + layout.offset + row // layout.cores


@given(layouts_of())
def test_stored_rows_are_those_of_the_definition(table: tuple[Layout, int]) -> None:
    layout, rows = table
    everyone = np.arange(rows, dtype=np.int64)
    stored = stored_rows(layout, everyone)
    assert stored.tolist() == [by_definition(layout, row) for row in range(rows)]
