from __future__ import annotations

import math

import pytest

from export.checkpoint.variables import RANK_MAX, ArrayStore, DumpedTable, Entry, Slice, can_be


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), True),
        ((0, 5), True),
        ((0, (1 << 59) - 1), True),
        ((-1,), False),
        ((1,) * RANK_MAX, True),
        ((1,) * (RANK_MAX + 1), False),
        (((1 << 59) - 1,), True),
        ((1 << 29, 1 << 30), False),
        ((0, 1 << 59), False),  # of one row it would be too many
    ],
)
def test_can_be_accepts_shapes_of_few_axes_whose_bytes_63_bits_count(
    shape: tuple[int, ...], expected: bool
) -> None:
    assert can_be(shape) is expected


def part(file: str, starts: tuple[int, ...], shape: tuple[int, ...], count: int = 4) -> Slice:
    return Slice(file, 0, count, None, starts, shape)


def test_variable_in_slices_has_their_bytes_files_and_number() -> None:
    whole = Entry("v", "float32", (4, 3), (part("f", (0, 0), (4, 3), 48),))
    cut = Entry(
        "v",
        "float32",
        (4, 3),
        (part("f", (0, 0), (2, 3), 24), part("g", (2, 0), (1, 3), 12), part("f", (3, 0), (1, 3))),
    )
    half = Entry("v", "float32", (4, 3), (part("f", (0, 0), (2, 3)),))
    assert (whole.whole, whole.pieces, whole.files, whole.bytes) == (True, 1, 1, 48)
    assert (cut.whole, cut.pieces, cut.files, cut.bytes) == (False, 3, 2, 40)
    assert (half.whole, half.pieces, half.files, half.bytes) == (False, 1, 1, 4)


@pytest.mark.parametrize(
    ("shape", "chunk", "pieces"),
    [
        ((), (), 1),
        ((5,), (1,), 5),
        ((5,), (2,), 3),
        ((5, 3), (2, 3), 3),
        ((5, 3), (2, 1), 9),
        ((0, 3), (0, 3), 0),
    ],
)
def test_variable_in_chunks_has_the_bytes_of_its_values(
    shape: tuple[int, ...], chunk: tuple[int, ...], pieces: int
) -> None:
    entry = Entry("v", "bfloat16", shape, (), ArrayStore("{}", chunk))
    assert (entry.pieces, entry.bytes, entry.itemsize) == (pieces, 2 * math.prod(shape), 2)
    assert (entry.files, entry.whole) == (0, False)


def test_variable_of_values_without_a_width_has_no_bytes() -> None:
    entry = Entry("v", "string", (5,), (), ArrayStore("{}", (5,)))
    assert (entry.itemsize, entry.bytes) == (0, 0)


def test_dumped_table_stores_vectors_keys_and_slots() -> None:
    vectors, keys, slot = (Entry(name, "float32", (1, 1), ()) for name in "vks")
    assert DumpedTable("t", vectors, keys, {"m": slot}).entries == (vectors, keys, slot)
