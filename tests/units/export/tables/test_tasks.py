from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from export.checkpoint.layouts import Layout, Mod, Plain
from export.checkpoint.variables import ArrayStore, Slice
from export.tables.tasks import (
    DECODER_BYTES,
    STORE_BYTES,
    WORKER_BYTES,
    SumTask,
    TableTask,
    block_bytes,
    stored_range,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("lanes", "remote", "expected"),
    [
        (1, False, MIB),
        (1, True, MIB),
        (2, False, MIB // 4),  # 128 KiB of each
        (64, False, 8 * MIB),
        (4096, False, 8 * MIB),
        (2, True, 64 * MIB),
    ],
)
def test_block_bytes_keep_rows_of_lanes_in_the_cache_but_for_those_of_a_store(
    lanes: int, remote: bool, expected: int
) -> None:
    assert block_bytes(lanes, 1 << 40, remote=remote) == expected


@pytest.mark.parametrize(("budget_bytes", "expected"), [(MIB, MIB // 2), (1, 1)])
def test_block_bytes_are_half_of_a_small_budget(budget_bytes: int, expected: int) -> None:
    assert block_bytes(4096, budget_bytes, remote=True) == expected


WHOLE = Slice("data", 0, 400, 7, (0, 0), (20, 5))
TASK = TableTask(
    table="t",
    dim=5,
    key="k",
    dtype="float32",
    first_row=10,
    rows=4,
    layout=Plain(),
    stored=(20, 5),
    slices=(WHOLE,),
    array=None,
    written_dtype="float32",
    directory="out",
    file="rows.bin",
    block_bytes=1000,
)
AS_INT8 = replace(TASK, written_dtype="int8", scales="scales.bin")
REMOTE = WHOLE._replace(file="s3://bucket/data")
ARRAY = ArrayStore("{}", (4, 5), memory_bytes=3000, file="array")


def test_task_knows_what_it_reads_and_writes() -> None:
    assert (TASK.itemsize, TASK.stored_row_bytes) == (4, 20)
    assert (TASK.bytes, TASK.scales_bytes) == (4 * 5 * 4, 0)
    assert (AS_INT8.bytes, AS_INT8.scales_bytes) == (4 * 5 + 4 * 4, 4 * 4)
    assert replace(TASK, dtype="float64").stored_row_bytes == 40
    assert [task.step for task in (TASK, replace(TASK, offset=0), replace(TASK, offset=9))] == [
        "rows.bin",
        "rows.bin at 0",
        "rows.bin at 9",
    ]


@pytest.mark.parametrize(
    ("changed", "as_stored", "converted"),
    [
        ({}, True, False),
        ({"dim": 4}, False, False),
        ({"layout": Mod((0, 10))}, False, False),
        ({"written_dtype": "bfloat16"}, False, True),
    ],
)
def test_task_writes_rows_as_they_are_stored_or_changes_them(
    changed: dict[str, Any], as_stored: bool, converted: bool
) -> None:
    task = replace(TASK, **changed)
    assert (task.as_stored, task.converted) == (as_stored, converted)


@pytest.mark.parametrize(
    ("changed", "expected_bytes"),
    [
        ({}, 2 * 1000),
        ({"block_bytes": 1}, 2 * 20),
        ({"slices": (WHOLE, REMOTE)}, 2 * 1000 + STORE_BYTES),
        ({"slices": (), "array": ARRAY}, 2 * 1000 + DECODER_BYTES + 3000),
        (
            {"slices": (), "array": ARRAY._replace(file="s3://bucket/array")},
            2 * 1000 + DECODER_BYTES + 3000 + STORE_BYTES,
        ),
        ({"written_dtype": "bfloat16"}, 2 * 1000 + 14 * MIB),
        # Sixteen copies of a row, as float64.
        ({"written_dtype": "bfloat16", "dim": 1 << 17}, 2 * 1000 + 16 * MIB),
    ],
)
def test_task_holds_blocks_and_what_reads_and_converts_them(
    changed: dict[str, Any], expected_bytes: int
) -> None:
    assert replace(TASK, **changed).memory_bytes == WORKER_BYTES + expected_bytes


def test_sum_task_reads_its_ranges() -> None:
    task = SumTask("rest", "k", 5, 4, ((0, 3), (7, 8)), (REMOTE,), 1000)
    assert (task.stored_row_bytes, task.bytes) == (20, 4 * 20)
    assert task.memory_bytes == WORKER_BYTES + STORE_BYTES + 2 * 1000


@pytest.mark.parametrize(
    ("layout", "first", "rows", "expected"),
    [
        (Plain(), 5, 3, (5, 8)),
        (Mod((0, 10)), 1, 4, (1, 12)),  # rows 10, 1, 11 and 2
        (Mod((10, 0)), 0, 1, (10, 11)),
    ],
)
def test_stored_range_is_the_least_that_holds_all_rows(
    layout: Layout, first: int, rows: int, expected: tuple[int, int]
) -> None:
    assert stored_range(layout, first, rows) == expected
