"""Tables of any dtype, cut into segments anyhow: compiled code and numpy read and combine the rows
that were written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle import native
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader

STORED: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
}
DIMS = (1, 2, 3, 7, 8, 16, 17, 32, 64, 65, 128, 300)
COMBINERS = st.sampled_from(["sum", "mean", "sqrtn"])
compiled = pytest.mark.skipif(
    native.Rows is None, reason=f"rows were not compiled: {native.MISSING}"
)


class Stored(NamedTuple):
    """Rows of a dtype, their scales, where both are cut into segments, and how many other bytes lie
    before each.
    """

    dtype: str
    values: NDArray[Any]
    scales: NDArray[np.float32]
    cuts: list[list[int]]
    before: int

    def wide(self) -> NDArray[np.float32]:
        actual = self.values.astype(np.float32)
        return actual * self.scales[:, np.newaxis] if self.dtype == "int8" else actual


@st.composite
def tables(draw: st.DrawFn, finite: bool = False) -> Stored:
    dtype = draw(st.sampled_from(sorted(STORED)))
    dim = draw(st.sampled_from(DIMS))
    rows = draw(st.integers(1, 300))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    if not finite and draw(st.booleans()):
        values = np.frombuffer(
            random.bytes(rows * dim * np.dtype(STORED[dtype]).itemsize), STORED[dtype]
        )
    else:  # values that cancel and round, zeros of both signs among them
        values = random.choice([-1.5, -0.0, 0.0, 1e-7, 0.3, 100.0], rows * dim).astype(
            STORED[dtype]
        )
    cut_rows = (
        st.sets(st.integers(1, rows - 1), max_size=min(40, rows - 1))
        if rows > 1
        else st.just(set[int]())
    )
    scales = random.choice([-2.0, 0.001, 3.7, 0.0], rows).astype(np.float32)
    cuts = [sorted(draw(cut_rows)), sorted(draw(cut_rows))]
    return Stored(dtype, values.reshape(rows, dim), scales, cuts, draw(st.integers(0, 70)))


def write_segments(
    root: Path, name: str, data: NDArray[Any], cuts: list[int], before: int
) -> list[entries.Segment]:
    """Writes rows into one file, cut into segments, each with other bytes before it; the later ones
    in front.
    """
    raw = bytearray()
    actual = []
    for first, end in reversed(list(pairwise([0, *cuts, len(data)]))):
        raw += b"\xff" * before
        offset = len(raw)
        actual.append(
            entries.Segment(
                file=name, offset=offset, first_row=first, rows=end - first, crc32c=0, blocks=()
            )
        )
        raw += data[first:end].tobytes()
    (root / name).write_bytes(raw)
    return actual[::-1]


@contextmanager
def opened(table: Stored, use_native: bool) -> Iterator[TableReader]:
    with tempfile.TemporaryDirectory() as directory, np.errstate(all="ignore"):
        root = Path(directory)
        page = {
            "rows": len(table.values),
            "dim": table.values.shape[1],
            "dtype": table.dtype,
            "segments": write_segments(root, "rows", table.values, table.cuts[0], table.before),
            "scales": write_segments(root, "scales", table.scales, table.cuts[1], table.before)
            if table.dtype == "int8"
            else (),
            "source": {"layout": "plain", "key": "k"},
        }
        reader = TableReader(root, entries.Table.model_validate(page), native=use_native)
        yield reader
        reader.close()


def assert_same_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    # Of a NaN only that it is one: which of two an addition keeps, and whether it is quietened, is
    # the CPU's choice.
    bits, expected_bits = (
        np.where(np.isnan(rows), np.float32(0), rows).view(np.uint32) for rows in (actual, expected)
    )
    np.testing.assert_array_equal(bits, expected_bits)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))


@st.composite
def bags(
    draw: st.DrawFn, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Rows, unknown ones among them, the offsets of bags of them, and weights."""
    lengths = draw(st.lists(st.integers(0, 5) | st.just(60), max_size=20))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    offsets = np.cumsum([0, *lengths])
    actual = random.integers(draw(st.sampled_from([0, -2])), rows, offsets[-1])
    weighted = draw(st.booleans())
    return (
        actual,
        offsets,
        random.choice([-1.5, 0, 0.25, 1, 3], actual.size).astype(np.float32) if weighted else None,
    )


READERS = pytest.mark.parametrize(
    "use_native", [pytest.param(True, marks=compiled), False], ids=["compiled", "numpy"]
)


@READERS
@given(table=tables(), data=st.data())
def test_rows_read_are_the_rows_written(
    use_native: bool, table: Stored, data: st.DataObject
) -> None:
    rows = np.array(
        data.draw(st.lists(st.integers(-3, len(table.values) - 1), max_size=150)), np.int64
    )
    first = data.draw(st.integers(0, len(table.values)))
    count = data.draw(st.integers(0, len(table.values) - first))
    with opened(table, use_native) as reader:
        expected = np.where(
            rows[:, np.newaxis] < 0, np.float32(0), table.wide()[np.maximum(rows, 0)]
        )
        assert_same_bits(reader.take(rows), expected)
        packed = np.zeros((rows.size, table.values.shape[1] + 5), np.float32)
        reader.take(rows, packed[:, 2:-3])
        assert_same_bits(packed[:, 2:-3], expected)
        assert not packed[:, :2].any()
        assert not packed[:, -3:].any()
        assert reader.read(first, count).tobytes() == table.values[first : first + count].tobytes()


@compiled
@settings(max_examples=250)
@given(tables(), COMBINERS, st.data())
def test_compiled_bags_have_the_bits_of_numpys(
    table: Stored, combiner: Any, data: st.DataObject
) -> None:
    rows, offsets, weights = data.draw(bags(len(table.values)))
    with opened(table, True) as reader, opened(table, False) as reference:
        expected = reference.bags(rows, offsets, combiner, weights)
        assert_same_bits(reader.bags(rows, offsets, combiner, weights), expected)
        packed = np.zeros((len(offsets) - 1, table.values.shape[1] + 5), np.float32)
        reader.bags(rows, offsets, combiner, weights, packed[:, 2:-3])
        assert_same_bits(packed[:, 2:-3], expected)


@compiled
@pytest.mark.parametrize("dim", [32, 65])
@pytest.mark.parametrize("dtype", sorted(STORED))
def test_compiled_rows_of_a_long_call_have_the_bits_of_numpys(dtype: str, dim: int) -> None:
    random = np.random.default_rng(3)  # a call of several windows of rows
    values = random.standard_normal((300, dim)) * 50
    scales = random.random(300).astype(np.float32)
    table = Stored(dtype, values.astype(STORED[dtype]), scales, [[100], [7, 9]], 5)
    rows = random.integers(-1, 300, 7000)
    offsets = np.array([0, 2040, 2060, 2060, 4500, 7000])
    with opened(table, True) as reader, opened(table, False) as reference:
        assert_same_bits(reader.take(rows), reference.take(rows))
        assert_same_bits(reader.bags(rows, offsets, "mean"), reference.bags(rows, offsets, "mean"))
