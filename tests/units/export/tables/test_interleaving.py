from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.tables.interleaving import stripes_of
from export.tables.plan import plan_tables
from export.tables.segments import open_rows
from export.tables.tasks import STRIPE_BYTES, WORKER_BYTES, SumTask, TableTask
from tests.units.export.checkpoint.tensor_bundles import write_bundle

CORES = 1024
ROWS = 3 * CORES + 5
DIM = 64
STORED_DIM = 128


def stacked_task(directory: Path) -> tuple[TableTask, np.ndarray]:
    """Returns the task of a table on many cores, and the table's rows."""
    table = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
    core_rows = 4  # the first five cores hold a row more than the others
    variable = np.zeros((CORES * core_rows, STORED_DIM), np.float32)
    for row in range(ROWS):
        variable[row % CORES * core_rows + row // CORES, :DIM] = table[row]
    write_bundle(directory / "ckpt", {"t": variable})
    stated = StatedTable(key="t", kind="sparse_core", rows=ROWS, dim=DIM, cores=CORES)
    checkpoint = open_checkpoint(directory)
    inventory = recognize(checkpoint, Statements(layouts={"t": stated}))
    plan = plan_tables(checkpoint, inventory, directory / "out")
    (task,) = plan.tasks
    return task, table


def test_task_plans_two_blocks_or_two_rows_that_are_longer(tmp_path: Path) -> None:
    task, _ = stacked_task(tmp_path)
    row_bytes = 4 * STORED_DIM
    contents = [
        replace(task, block_bytes=size).memory_bytes for size in (1, row_bytes, 1 << 20, 3 << 20)
    ]
    assert contents[0] == contents[1] == WORKER_BYTES + 2 * row_bytes
    assert contents[2] - contents[1] == 2 * ((1 << 20) - row_bytes)
    assert contents[3] - contents[2] == 2 * (2 << 20)

    sum_task = SumTask("rest", "t", STORED_DIM, 4, ((0, 9),), task.slices, 1)
    assert sum_task.memory_bytes == contents[0]
    assert sum_task.bytes == 9 * row_bytes


@pytest.mark.parametrize("block_bytes", [1, 64 << 10, 8 << 20])
def test_stripes_of_many_lanes_are_short_and_hold_every_row_once(
    tmp_path: Path, block_bytes: int
) -> None:
    task, table = stacked_task(tmp_path)
    task = replace(task, block_bytes=block_bytes)
    restored = np.full_like(table, np.nan)
    with open_rows(task) as stored:
        for first, stripe in stripes_of(stored, task):
            assert stripe.nbytes <= STRIPE_BYTES
            rows = stripe.view(np.float32)
            assert np.isnan(restored[first : first + len(rows)]).all()
            restored[first : first + len(rows)] = rows
    np.testing.assert_array_equal(restored, table)


@pytest.mark.parametrize("lanes", [1, 2, 3, 7])
@pytest.mark.parametrize(("first", "rows"), [(0, 1), (0, 40), (5, 23), (13, 7), (39, 1)])
@pytest.mark.parametrize("dim", [2, 3])
def test_stripes_of_any_lanes_hold_every_row_of_a_segment_once(
    tmp_path: Path, lanes: int, first: int, rows: int, dim: int
) -> None:
    table = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)
    lane_rows = 40 // lanes + 1
    variable = np.full((lanes * lane_rows, 3), np.nan, np.float32)
    for row in range(40):
        variable[row % lanes * lane_rows + row // lanes] = table[row]
    write_bundle(tmp_path / "ckpt", {"t": variable})
    stated = StatedTable(key="t", kind="sparse_core", rows=40, dim=dim, cores=lanes)
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognize(checkpoint, Statements(layouts={"t": stated}))
    (task,) = plan_tables(checkpoint, inventory, tmp_path / "out").tasks
    for block_bytes in (1, 12, 24, 36, 84, 150, 1 << 20):
        part = replace(task, first_row=first, rows=rows, block_bytes=block_bytes)
        actual: dict[int, list[float]] = {}
        with open_rows(part) as stored:
            for start, stripe in stripes_of(stored, part):
                values = stripe.view(np.float32)
                assert len(values) * 12 <= max(12, block_bytes)
                for position, value in enumerate(values.tolist()):
                    assert start + position not in actual
                    actual[start + position] = value
        assert list(actual) == sorted(actual) or lanes > 1
        expected = {row: table[row, :dim].tolist() for row in range(first, first + rows)}
        assert actual == expected
