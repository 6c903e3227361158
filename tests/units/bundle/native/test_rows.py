"""Compiled readers of rows check what they are given: nothing is read or written out of bounds.

tests/laws/test_tables.py holds what they read to NumPy's.
"""

from __future__ import annotations

import os
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle import native
from bundle.features.columns import Column

is_compiled = pytest.mark.skipif(native.Rows is None, reason=f"not compiled: {native.MISSING}")
MEMORY = np.arange(4 * 6 * 10, dtype=np.uint8)
VALUES = MEMORY.view(np.float32).reshape(10, 6)
WANTED = np.array([3, 1])


def rows(dtype: str = "float32", dim: int = 6, values: Any = None, scales: Any = None) -> Any:
    assert native.Rows is not None
    return native.Rows(dtype, dim, [(MEMORY, 0, 10, None)] if values is None else values, scales)


def read_tables(readers: Any, names: tuple[str, ...], columns: Any, out: Any) -> int:
    assert native.read_tables is not None
    return native.read_tables(readers, names, columns, 0, out, 0)


def test_the_extension_is_built_where_there_is_a_compiler() -> None:
    if shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None:
        pytest.skip("there is no C compiler: numpy reads the rows")
    assert native.MISSING == ""
    assert native.Rows is not None


@is_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        *({"dtype": dtype} for dtype in ("float64", "int8")),
        *({"dim": dim, "values": [(MEMORY, 0, 1, None)]} for dim in (0, 1 << 62)),
        *(
            {"values": [(MEMORY, *part, None)]}
            for part in ((1, 10), (0, 11), (-1, 1), (0, 0), (0, 1 << 62))
        ),
        *(
            {"values": values}
            for values in ([], [(MEMORY[::2], 0, 1, None)], [(VALUES, 0, 1, None)])
        ),
        {"scales": [(MEMORY, 0, 10, None)]},
        {"dtype": "int8", "scales": [(MEMORY, 0, 9, None)]},
    ],
)
def test_rows_outside_their_memory_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"row|segment|dtype"):
        rows(**arguments)


CHANGED = np.arange(100, 100 + 3 * 24, dtype=np.uint8)


def deltas() -> dict[str, Any]:
    """Two deltas: rows 3 and 9 of the segment in the first, row 9 again in the second."""
    bits = np.zeros(1024, np.uint64)
    bits[0] = 1 << 3 | 1 << 9
    ranks = np.full(128, 2, np.uint32)
    ranks[0] = 0
    begin = CHANGED.ctypes.data
    return {
        "skipped_rows": 0,
        "bits": bits,
        "ranks": ranks,
        "slots": np.array([0, 1 << 16], np.uint32),
        "frames": np.array([[begin], [begin + 48]], np.uint64),
        "files": (CHANGED[:48], CHANGED[48:]),
    }


def other(name: str, *positions: int, value: int) -> NDArray[Any]:
    """Returns an array of the deltas with another value at a position."""
    array: NDArray[Any] = deltas()[name].copy()
    array[positions] = value
    return array


@is_compiled
@pytest.mark.parametrize(
    "wrong",
    [
        *({"skipped_rows": number} for number in (-1, 65_536 - 9, 1 << 62, -(1 << 63))),
        {"bits": deltas()["bits"][:-1]},
        {"bits": deltas()["bits"].view(np.int64)},
        {"bits": np.zeros(2048, np.uint64)[::2]},
        {"bits": other("bits", 1023, value=1 << 63)},
        {"bits": other("bits", 0, value=1 << 3)},
        {"ranks": deltas()["ranks"][:-1]},
        {"ranks": other("ranks", 0, value=1)},
        {"ranks": other("ranks", 127, value=3)},
        {"slots": deltas()["slots"][:-1]},
        {"slots": np.array([0, 1 << 16, 0], np.uint32)},
        *({"slots": other("slots", 1, value=slot)} for slot in (2 << 16, 1 << 16 | 1, 2)),
        {"frames": deltas()["frames"][:-1]},
        {"frames": deltas()["frames"].reshape(1, 2)},
        *(
            {"frames": other("frames", 1, 0, value=CHANGED.ctypes.data + offset)}
            for offset in (47, 49, -CHANGED.ctypes.data)
        ),
        {"files": ()},
        {"files": (CHANGED[:48], CHANGED[48:-1])},
        {"files": (CHANGED[:48], None)},
        {"files": (CHANGED[:48],) * 100},
    ],
)
def test_deltas_whose_rows_would_lie_outside_their_memory_are_rejected(
    wrong: dict[str, Any],
) -> None:
    for values in ([(MEMORY, 0, 10)], [(MEMORY, 0, 4), (MEMORY, 0, 10)]):
        segments = [(*part, None) for part in values[:-1]]
        directory = {**deltas(), **wrong}
        with pytest.raises(ValueError, match="directory"):
            rows(values=[*segments, (*values[-1], tuple(directory.values()))])


READ_ONLY = np.frombuffer(bytes(48), np.float32).reshape(2, 6)
OUTPUTS: list[Any] = [
    *(np.zeros(shape, np.float32) for shape in ((2, 5), (3, 6), 12)),
    *(np.zeros((2, 6)), np.zeros((2, 6), ">f4"), np.zeros((6, 2), np.float32).T, [0], READ_ONLY),
    np.zeros((2, 12), np.float32)[:, ::2],
]


@is_compiled
@pytest.mark.parametrize("out", OUTPUTS)
def test_an_output_that_cannot_hold_the_rows_is_rejected(out: Any) -> None:
    with pytest.raises(ValueError, match=r"\[2, 6\]"):
        rows().take(WANTED, out)
    with pytest.raises(ValueError, match=r"\[2, 6\]"):
        rows().bags(WANTED, np.array([0, 1, 2]), "sum", None, out)
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float32
        or out.ndim == 1
        or out is READ_ONLY
    ):
        with pytest.raises(ValueError, match="writable float32"):
            read_tables((rows(),), ("id",), {"id": Column(WANTED)}, out)


@is_compiled
def test_offsets_weights_and_combiners_that_do_not_fit_are_rejected() -> None:
    for offsets in ([], [0, 3], [-1, 2], [0, 2, 1], [2, 0]):
        with pytest.raises(ValueError, match="offsets"):
            rows().bags(WANTED, np.array(offsets, np.int64), "sum", None, None)
    for combiner, weights in (("sum", np.ones(3, np.float32)), ("max", None)):
        with pytest.raises(ValueError, match=r"weights|max"):
            rows().bags(WANTED, np.array([0, 2]), combiner, weights, None)


IDS = np.array([9, 0, 1])
ENDS = np.array([0, 1, 3])
NO_SINGLES: list[Any] = [
    *(None, (WANTED,), [WANTED, None, None], Column([9, 0])),  # type: ignore[arg-type]
    *(Column(np.array(values)) for values in ([9, 10], [9, -1], [9], [[9], [0]])),
    *(Column(WANTED.astype(dtype)) for dtype in (np.int32, np.float32, object, ">i8")),
    Column(np.array([9, 1, 0, 1])[::2]),
    *(Column(WANTED, np.array(ends)) for ends in ([0, 2, 2], [0, 1])),
    Column(WANTED, np.array([0, 1, 2], np.int32)),
    Column(WANTED, None, np.ones(2, np.float32)),
]
NO_BAGS: list[Any] = [
    *(None, Column(WANTED), Column(IDS.astype(np.int32), ENDS)),
    *(Column(np.array([9, row, 1]), ENDS) for row in (10, -1)),
    *(
        Column(IDS, np.array(ends, np.int64))
        for ends in ([0, 1, 2], [1, 1, 3], [0, 4, 3], [0, -1, 3], [0, 3], [[0, 1, 3]], [])
    ),
    Column(IDS, ENDS.astype(np.int32)),
    Column(IDS, ENDS, np.ones(3, np.float32)),
]
NO_NUMBERS = [Column(np.array([1, number], np.float32)) for number in (np.inf, -np.inf, np.nan)]


@is_compiled
@pytest.mark.parametrize(
    ("kind", "column"),
    [
        *(("single", column) for column in NO_SINGLES),
        *(("bag", column) for column in NO_BAGS),
        *(("number", column) for column in NO_NUMBERS),
    ],
)
def test_a_column_that_compiled_code_does_not_read_is_left(kind: str, column: Any) -> None:
    out = np.full((2, 6), 7, np.float32)
    reader = {"single": rows(), "bag": (rows(), 1), "number": 1}[kind]
    assert read_tables((reader,), ("f",), {"f": column}, out) == 0
    if kind != "number":
        assert (out == 7).all()


@is_compiled
@pytest.mark.parametrize("width", [0, 1, 6, 7, 9])
def test_columns_are_written_up_to_the_first_that_cannot_be_read(width: int) -> None:
    out = np.full((2, 10), 7, np.float32)
    columns = {"id": Column(WANTED), "x": Column(np.array([0.5, -1.5], np.float32))}
    readers = (rows(), 1, None, rows())
    count = read_tables(readers, ("id", "x", "y", "id"), columns, out[:, :width])
    assert count == (width >= 6) + (width >= 7)
    expected = np.hstack([VALUES[WANTED], [[0.5], [-1.5]]])
    written = min((0, 6, 7)[count], width)
    np.testing.assert_array_equal(out[:, :written], expected[:, :written])
    assert (out[:, max(width, written) :] == 7).all()


@is_compiled
def test_many_rows_are_read_by_several_threads_at_once() -> None:
    wanted = np.random.default_rng(0).integers(0, 10, 200_000)  # enough to release the GIL
    expected: NDArray[np.float32] = VALUES[wanted]
    reader = rows()
    with ThreadPoolExecutor(3) as pool:
        are_equal = pool.map(
            lambda _: np.array_equal(reader.take(wanted, None), expected), range(9)
        )
    assert all(are_equal)
