"""Plans of variables of any size, and what of a checkpoint cannot be copied or linked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.variables import Entry, Slice
from export.errors import CheckpointError, NotConvertible
from export.saved_model.files import VariablesPlan, plan_variables
from export.tables.plan import BUDGET_BYTES

DATA = "ckpt-1.data-00000-of-00001"
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First index and extent on each axis."""


def entry_of(
    shape: tuple[int, ...],
    *boxes: Box,
    dtype: str = "float32",
    files: tuple[str, ...] = (),
    gap: int = 0,
    crc: int | None = 1,
) -> Entry:
    """Returns a variable whose slices lie behind each other, in one file or in files by name."""
    itemsize = 2 if dtype == "float16" else 4
    slices: list[Slice] = []
    ends: dict[str, int] = {}
    for position, (starts, extent) in enumerate(boxes or [((0,) * len(shape), shape)]):
        file = files[position] if files else DATA
        size = itemsize * math.prod(extent)
        slices.append(Slice(file, ends.get(file, 100), size, crc, starts, extent))
        ends[file] = slices[-1].offset + size + gap
    return Entry("table", dtype, shape, tuple(slices))


def planned(entry: Entry, *, link: bool = False, check: bool = False) -> VariablesPlan:
    return plan_variables(Path("/out"), {"table_0": entry}, BUDGET_BYTES, link, check)


HALVES: tuple[Box, Box] = (((0, 0), (4, 6)), ((4, 0), (6, 6)))


def test_large_variable_is_copied_in_tasks_of_512_mib() -> None:
    rows = 2_500_000  # of 1 KiB
    plan = planned(entry_of((rows, 256)))
    tasks: list[Any] = list(plan.tasks)
    assert [task.rows for task in tasks] == [524_288] * 4 + [402_848]
    assert [task.first_row for task in tasks] == [524_288 * number for number in range(5)]
    assert [task.offset for task in tasks] == [(512 << 20) * number for number in range(5)]
    assert (plan.end, plan.moved_bytes, plan.load_bytes) == (rows << 10, rows << 10, rows << 10)
    assert {task.directory for task in tasks} == {"/out"}
    assert {task.file for task in tasks} == {"variables/variables.data-00000-of-00001"}
    assert {task.block_bytes for task in tasks} == {1 << 20}
    assert [source.key for source in plan.sources] == ["table"]
    assert plan.sources[0].subject == "variable 'table'"


def test_workers_hold_the_memory_of_the_largest_tasks() -> None:
    variables = {
        "a": entry_of((4, 1)),
        "b": entry_of((10, 6), *HALVES),
        "c": entry_of((1, 4 << 20)),
    }
    plan = plan_variables(Path("/out"), variables, BUDGET_BYTES, link=False)
    memory_bytes = sorted(task.memory_bytes for task in plan.tasks)
    assert len(memory_bytes) == 3
    assert memory_bytes[2] > memory_bytes[1]
    assert plan.peak_memory_bytes(1) == memory_bytes[2]
    assert plan.peak_memory_bytes(2) == memory_bytes[1] + memory_bytes[2]
    assert plan.peak_memory_bytes(9) == sum(memory_bytes)


def test_variables_are_copied_behind_each_other_in_the_order_of_their_keys() -> None:
    variables = {"b": entry_of((3, 2)), "a": entry_of((5, 2))}
    plan = plan_variables(Path("/out"), variables, BUDGET_BYTES, link=False)
    assert [(task.step[-4:], task.bytes) for task in plan.tasks] == [("at 0", 40), ("t 40", 24)]
    assert {key: entry.slices[0].offset for key, entry in plan.large.items()} == {"a": 0, "b": 40}
    assert {entry.slices[0].starts for entry in plan.large.values()} == {(0, 0)}
    assert plan.end == 64


@pytest.mark.parametrize(
    ("check", "bytes_read"), [pytest.param(False, 0, id="as it is"), (True, 10 * 6 * 4)]
)
def test_linked_variable_is_read_only_to_be_summed(check: bool, bytes_read: int) -> None:
    plan = planned(entry_of((10, 6), *HALVES), link=True, check=check)
    assert plan.moved_bytes == bytes_read
    assert len(plan.sources) == check
    assert plan.end == 0
    assert plan.written_file == Path("/out/variables/variables.data-00001-of-00002")
    assert plan.links == {Path("/out/variables/variables.data-00000-of-00002"): DATA}


@pytest.mark.parametrize(
    ("entry", "slices"),
    [
        pytest.param(entry_of((10, 6), *HALVES), 1, id="rows behind each other"),
        pytest.param(entry_of((10, 6), *HALVES[::-1]), 2, id="rows in another order"),
        pytest.param(entry_of((10, 6), *HALVES, gap=4), 2, id="something between them"),
        pytest.param(entry_of((10, 6), *HALVES, files=("a", "b")), 2, id="two files"),
        pytest.param(
            entry_of((1, 6), ((0, 0), (1, 2)), ((0, 2), (1, 4))), 2, id="columns behind each other"
        ),
        pytest.param(
            entry_of((10, 6), *HALVES, ((10, 0), (0, 6))), 1, id="an empty slice at the end"
        ),
        pytest.param(entry_of((10, 6)), 1, id="one slice"),
    ],
)
def test_slices_that_lie_behind_each_other_are_linked_as_one(entry: Entry, slices: int) -> None:
    linked = planned(entry, link=True).large["table_0"]
    assert len(linked.slices) == slices
    assert sum(part.bytes for part in linked.slices) == entry.bytes
    assert linked.whole is (slices == 1)
    assert linked.slices[0].offset >= 100


def test_sums_of_slices_that_are_linked_as_one_are_joined() -> None:
    from bundle.format.checksums import crc32c

    data = bytes(range(240))
    entry = entry_of((10, 6), *HALVES)
    first, second = entry.slices
    slices = (
        first._replace(crc32c=crc32c(data[: first.bytes])),
        second._replace(crc32c=crc32c(data[first.bytes :])),
    )
    (whole,) = planned(entry._replace(slices=slices), link=True).large["table_0"].slices
    assert (whole.crc32c, whole.starts, whole.shape) == (crc32c(data), (0, 0), (10, 6))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_only_some_dtypes_cannot_stay_in_slices(dtype: str) -> None:
    whole = entry_of((10, 6), dtype=dtype)
    assert len(planned(whole, link=True).large["table_0"].slices) == 1
    halves = entry_of((10, 6), *HALVES, dtype=dtype, gap=2)
    if dtype == "float32":
        assert len(planned(halves, link=True).large["table_0"].slices) == 2
        return
    with pytest.raises(NotConvertible) as caught:
        planned(halves, link=True)
    assert str(caught.value) == (
        "'table' is float16 in 2 slices, which TensorFlow cannot restore; "
        'set output.tables = "inline", which joins them'
    )


def test_slice_without_a_checksum_is_copied_and_not_linked() -> None:
    entry = entry_of((10, 6), *HALVES, crc=None)
    assert len(planned(entry).tasks) == 1
    half = entry._replace(slices=(entry_of((10, 6), *HALVES).slices[0], entry.slices[1]))
    for unsummed in (entry, half):
        with pytest.raises(NotConvertible, match="'table' has no checksum to be linked with"):
            planned(unsummed, link=True)


def test_variable_in_chunks_is_rejected() -> None:
    with pytest.raises(NotConvertible, match="'table' lies in chunks of an array store"):
        planned(entry_of((10, 6))._replace(slices=()))


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    "boxes",
    [
        pytest.param((((0, 0), (4, 6)), ((5, 0), (5, 6))), id="a gap"),
        pytest.param((((0, 0), (4, 6)), ((3, 0), (7, 6))), id="an overlap"),
        pytest.param((((0, 0), (10, 2)), ((0, 3), (10, 3))), id="a gap of columns"),
    ],
)
def test_slices_that_do_not_fit_are_rejected(boxes: tuple[Box, ...], link: bool) -> None:
    with pytest.raises(CheckpointError, match=r"'table': .*; save the checkpoint anew"):
        planned(entry_of((10, 6), *boxes), link=link)


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((10,), (((0,), (3,)), ((3,), (7,)))),
        ((6, 4, 2, 3), (((0, 0, 0, 0), (6, 1, 2, 3)), ((0, 1, 0, 0), (6, 3, 2, 3)))),
    ],
)
def test_variable_of_any_number_of_axes_is_copied_from_slices(
    shape: tuple[int, ...], boxes: tuple[Box, ...]
) -> None:
    plan = planned(entry_of(shape, *boxes))
    (task,) = plan.tasks
    assert task.bytes == plan.end == 4 * math.prod(shape)
    assert len(task.slices) == 2
    assert plan.large["table_0"].shape == shape
