"""What compiled code reads and combines has the bits that numpy's way has, which stays as its oracle."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle import native
from bundle.format import manifest as entries
from bundle.tables.reader import TableReader

pytestmark = pytest.mark.skipif(native.Rows is None, reason=f"rows were not compiled: {native.MISSING}")

STORED: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
DIMS = (1, 2, 3, 7, 8, 16, 17, 32, 64, 65, 128, 300)


def shards(root: Path, name: str, data: NDArray[Any], cuts: list[int], before: int) -> list[entries.Shard]:
    """Writes rows into one file, cut into shards, each with other bytes before it; the later ones in front."""
    raw, found = bytearray(), []
    bounds = [0, *cuts, len(data)]
    for first, end in reversed(list(pairwise(bounds))):
        raw += b"\xff" * before
        place = len(raw)
        found.append(entries.Shard(file=name, offset=place, first_row=first, rows=end - first, crc32c=0, blocks=()))
        raw += data[first:end].tobytes()
    (root / name).write_bytes(raw)
    return found[::-1]


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, NDArray[Any], NDArray[np.float32], list[list[int]], int]:
    """A dtype, rows of it from random bits, scales, where both are cut into shards, and the bytes before each."""
    dtype, dim, rows = draw(st.sampled_from(sorted(STORED))), draw(st.sampled_from(DIMS)), draw(st.integers(1, 300))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    if draw(st.booleans()):
        values = np.frombuffer(random.bytes(rows * dim * np.dtype(STORED[dtype]).itemsize), STORED[dtype])
    else:  # values that cancel and round, zeros of both signs among them
        values = random.choice([-1.5, -0.0, 0.0, 1e-7, 0.3, 100.0], rows * dim).astype(STORED[dtype])
    cuts: list[list[int]] = []
    for _ in range(2):
        few = st.sets(st.integers(1, rows - 1), max_size=min(40, rows - 1)) if rows > 1 else st.just(set[int]())
        cuts.append(sorted(draw(few)))
    scales = random.choice([-2.0, 0.001, 3.7, 0.0], rows).astype(np.float32)
    return dtype, values.reshape(rows, dim), scales, cuts, draw(st.integers(0, 70))


def open_both(root: Path, table: tuple[str, NDArray[Any], NDArray[np.float32], list[list[int]], int]) -> Any:
    dtype, values, scales, cuts, before = table
    page = {
        "rows": len(values),
        "dim": values.shape[1],
        "dtype": dtype,
        "shards": shards(root, "rows", values, cuts[0], before),
        "scales": shards(root, "scales", scales, cuts[1], before) if dtype == "int8" else (),
        "source": {"layout": "plain", "key": "k"},
    }
    read = entries.Table.model_validate(page)
    return TableReader(root, read), TableReader(root, read, native=False)


def assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    # Of a NaN only that it is one: which of two an addition keeps, and whether it is quietened, is the CPU's choice.
    one, other = (np.where(np.isnan(each), np.float32(0), each).view(np.uint32) for each in (found, expected))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@settings(max_examples=150)
@given(tables(), st.data())
def test_native_rows_have_the_bits_of_numpys(table: Any, data: st.DataObject) -> None:
    count = len(table[1])
    rows = np.array(data.draw(st.lists(st.integers(-3, count - 1), max_size=150)), np.int64)
    with tempfile.TemporaryDirectory() as root, np.errstate(all="ignore"):
        read, oracle = open_both(Path(root), table)
        assert_same_bits(read.take(rows), oracle.take(rows))
        packed = np.zeros((rows.size, table[1].shape[1] + 5), np.float32)
        read.take(rows, packed[:, 2:-3])
        assert_same_bits(packed[:, 2:-3], oracle.take(rows))
        assert not packed[:, :2].any()
        assert not packed[:, -3:].any()
        assert_same_bits(read.take(rows[::-1]), oracle.take(rows)[::-1])


@settings(max_examples=250)
@given(tables(), st.data())
def test_native_bags_have_the_bits_of_numpys(table: Any, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5) | st.just(60), max_size=20))
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    offsets = np.cumsum([0, *lengths])
    rows = random.integers(data.draw(st.sampled_from([0, -2])), len(table[1]), offsets[-1])
    weights = random.choice([-1.5, 0, 0.3, 1, 3], rows.size).astype(np.float32) if data.draw(st.booleans()) else None
    combiner = data.draw(st.sampled_from(["sum", "mean", "sqrtn"]))
    with tempfile.TemporaryDirectory() as root, np.errstate(all="ignore"):
        read, oracle = open_both(Path(root), table)
        expected = oracle.bags(rows, offsets, combiner, weights)
        assert_same_bits(read.bags(rows, offsets, combiner, weights), expected)
        packed = np.zeros((len(lengths), table[1].shape[1] + 5), np.float32)
        read.bags(rows, offsets, combiner, weights, packed[:, 2:-3])
        assert_same_bits(packed[:, 2:-3], expected)


@pytest.mark.parametrize("dim", [32, 65])
@pytest.mark.parametrize("dtype", sorted(STORED))
def test_native_rows_of_a_long_call_have_the_bits_of_numpys(dtype: str, dim: int, tmp_path: Path) -> None:
    random = np.random.default_rng(3)  # a call of several windows of rows
    values, scales = random.standard_normal((300, dim)) * 50, random.random(300).astype(np.float32)
    read, oracle = open_both(tmp_path, (dtype, values.astype(STORED[dtype]), scales, [[100], [7, 9]], 5))
    rows = random.integers(-1, 300, 7000)
    assert_same_bits(read.take(rows), oracle.take(rows))
    offsets = np.array([0, 2040, 2060, 2060, 4500, 7000])
    assert_same_bits(read.bags(rows, offsets, "mean"), oracle.bags(rows, offsets, "mean"))
