"""Tables of any dtype, cut into segments anyhow, with and without deltas: compiled code and numpy
read and combine the rows that were written.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle import native
from bundle.features.columns import Column
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader
from bundle.tables.segments import RowRange
from bundle.tables.sharding import table_of_rows
from tests.bundles.deltas import with_history

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
    """A table as it is written.

    Attributes:
      dtype: The stored dtype.
      values: [rows, dim] of that dtype.
      scales: [rows] float32, of int8 rows.
      cuts: The rows where segments of the values begin, and those where segments of the scales do.
      before: The number of other bytes before each segment.
      deltas: The number of deltas of the first segments of the values, and of those of the scales;
        the others have none.
      hidden: The number of rows before and after those of the table, which a shard leaves out.
    """

    dtype: str
    values: NDArray[Any]
    scales: NDArray[np.float32]
    cuts: list[list[int]]
    before: int
    deltas: list[list[int]]
    hidden: tuple[int, int]

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
    counts = st.lists(st.integers(0, 3), max_size=3)
    return Stored(
        dtype,
        values.reshape(rows, dim),
        scales,
        cuts,
        before=draw(st.integers(0, 70)),
        deltas=[draw(counts), draw(counts)],
        hidden=draw(st.sampled_from([(0, 0), (1, 2), (70, 0), (600, 3)])),
    )


def write_segments(
    root: Path, name: str, data: NDArray[Any], table: Stored, part: int
) -> list[entries.Segment]:
    """Writes rows into one file, cut into segments, each with other bytes before it; the later ones
    in front.
    """
    random = np.random.default_rng(len(data))
    first_row, after = table.hidden
    data = np.concatenate([data[:1].repeat(first_row, 0), data, data[:1].repeat(after, 0)])
    cuts = [cut + first_row for cut in table.cuts[part]]
    raw = bytearray()
    actual = []
    bounds = list(pairwise([0, *cuts, len(data)]))
    delta_counts = [*table.deltas[part], *[0] * len(bounds)]
    for number, (first, end) in reversed(list(enumerate(bounds))):
        raw += b"\xff" * table.before
        segment = entries.Segment(
            file=name, offset=len(raw), first_row=first, rows=end - first, crc32c=0, blocks=()
        )
        changes = []
        for _ in range(delta_counts[number]):
            count = random.integers(1, end - first, endpoint=True)
            changes.append(np.sort(random.choice(end - first, count, replace=False)))
        segment, older = with_history(root, segment, data[first:end], changes)
        actual.append(segment)
        raw += older.tobytes()
    (root / name).write_bytes(raw)
    return actual[::-1]


@contextmanager
def opened(table: Stored, use_native: bool) -> Iterator[TableReader]:
    with tempfile.TemporaryDirectory() as directory, np.errstate(all="ignore"):
        root = Path(directory)
        page = {
            "rows": sum(table.hidden) + len(table.values),
            "dim": table.values.shape[1],
            "dtype": table.dtype,
            "segments": write_segments(root, "rows", table.values, table, 0),
            "scales": write_segments(root, "scales", table.scales, table, 1)
            if table.dtype == "int8"
            else (),
            "source": {"layout": "plain", "key": "k"},
        }
        entry = entries.Table.model_validate(page)
        entry = table_of_rows(entry, RowRange(table.hidden[0], len(table.values)))
        reader = TableReader(root, entry, native=use_native)
        assert (reader.native is not None) == use_native
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
        data.draw(st.lists(st.integers(-3, len(table.values) + 3), max_size=150)), np.int64
    )
    within = rows.clip(0, len(table.values) - 1)
    first = data.draw(st.integers(0, len(table.values)))
    count = data.draw(st.integers(0, len(table.values) - first))
    with opened(table, use_native) as reader:
        # For a row past the end, any other row may be read: the last one is.
        expected = np.where(rows[:, np.newaxis] < 0, np.float32(0), table.wide()[within])
        assert_same_bits(reader.take(rows), expected)
        packed = np.zeros((rows.size, table.values.shape[1] + 5), np.float32)
        reader.take(rows, packed[:, 2:-3])
        assert_same_bits(packed[:, 2:-3], expected)
        assert not packed[:, :2].any()
        assert not packed[:, -3:].any()
        assert reader.read(first, count).tobytes() == table.values[first : first + count].tobytes()
        stored, scales = reader.take_stored(within)
        assert stored.tobytes() == table.values[within].tobytes()
        if table.dtype == "int8":
            assert scales.tobytes() == table.scales[within].tobytes()


@compiled
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


BITS = {
    "bfloat16": "1c70fbb7b65e2a6d7dfaeb1e6a66fa34ffa134bb2b737782b09237e4da49348e",
    "float16": "9c32218926d0d1286e17b145660c3c33ee40fd4123bca594b58472bd2d98ac6e",
    "float32": "a15f618b3857ee560341ec6340d2db9c3d16bfb078d6777fb48e69886708b150",
    "int8": "7218d18b3a3da107ff771c61dd0d80a78307f53a256546a2660b70baeb30a52d",
}
"""SHA-256 of what the test below reads, on x86-64."""


@READERS
@pytest.mark.parametrize("dtype", sorted(STORED))
def test_rows_and_bags_have_the_same_bits_on_every_cpu(use_native: bool, dtype: str) -> None:
    digest = hashlib.sha256()
    for dim in DIMS:
        numbers = np.arange(211 * dim) * 7919 % 2003 - 1001
        if dtype == "int8":
            values = (numbers % 255 - 127).astype(np.int8)
        else:  # thirds round, and the smallest are subnormal or 0
            values = (numbers / 3 * 2.0 ** -(numbers % 140)).astype(STORED[dtype])
        scales = (np.arange(211) % 17 / 7).astype(np.float32)
        table = Stored(
            dtype, values.reshape(211, dim), scales, [[50], []], 0, [[], []], hidden=(0, 0)
        )
        rows = np.arange(900) * 613 % 211
        offsets = np.cumsum([0, *range(40), 120])
        weights = (np.arange(900) % 11 / 9 - 0.5).astype(np.float32)
        with opened(table, use_native) as reader:
            digest.update(reader.take(rows).tobytes())
            for combiner in ("sum", "mean", "sqrtn"):
                digest.update(reader.bags(rows, offsets, combiner).tobytes())
                digest.update(reader.bags(rows, offsets, combiner, weights).tobytes())
    assert digest.hexdigest() == BITS[dtype]


@compiled
@given(st.lists(tables(), min_size=1, max_size=3), st.integers(0, 12), st.data())
def test_compiled_features_of_several_tables_have_the_bits_of_numpys(
    stored: list[Stored], n: int, data: st.DataObject
) -> None:
    assert native.read_tables is not None
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    with ExitStack() as stack:
        readers: list[Any] = []
        columns = {}
        expected = [np.empty((n, 0), np.float32)]
        for name, table in zip("abc", stored, strict=False):
            reader = stack.enter_context(opened(table, True))
            reference = stack.enter_context(opened(table, False))
            if data.draw(st.booleans()):
                readers.append(reader.native)
                rows = random.integers(0, reader.rows, n)
                columns[name] = Column(rows)
                expected.append(reference.take(rows))
            else:
                combiner: Any = data.draw(COMBINERS)
                readers.append((reader.native, ["sum", "mean", "sqrtn"].index(combiner)))
                offsets = np.cumsum([0, *random.integers(0, 6, n)])
                rows = random.integers(0, reader.rows, offsets[-1])
                columns[name] = Column(rows, offsets)
                expected.append(reference.bags(rows, offsets, combiner))
        width = sum(table.values.shape[1] for table in stored)
        out = np.zeros((n, width + 5), np.float32)
        packed = out[:, 2:-3]
        names = tuple(columns)
        assert native.read_tables(tuple(readers), names, columns, 0, packed, 0) == len(stored)
        assert_same_bits(packed, np.hstack(expected))
        assert not out[:, :2].any()
        assert not out[:, -3:].any()


@compiled
@pytest.mark.parametrize("dim", [32, 65])
@pytest.mark.parametrize("dtype", sorted(STORED))
def test_compiled_rows_of_a_long_call_have_the_bits_of_numpys(dtype: str, dim: int) -> None:
    random = np.random.default_rng(3)  # a call of several windows of rows
    values = random.standard_normal((300, dim)) * 50
    scales = random.random(300).astype(np.float32)
    stored = values.astype(STORED[dtype])
    # The ranges of deltas meet at one of its rows.
    table = Stored(
        dtype, stored, scales, [[290], [287, 289]], 5, deltas=[[2], [2, 0]], hidden=(65_400, 9)
    )
    rows = random.integers(-1, 300, 7000)
    offsets = np.array([0, 2040, 2060, 2060, 4500, 7000])
    with opened(table, True) as reader, opened(table, False) as reference:
        assert_same_bits(reader.take(rows), reference.take(rows))
        assert_same_bits(reader.take(rows[rows >= 0]), table.wide()[rows[rows >= 0]])
        assert_same_bits(reader.bags(rows, offsets, "mean"), reference.bags(rows, offsets, "mean"))
