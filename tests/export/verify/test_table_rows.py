"""Rows that differ from the checkpoint are found, wherever they are compared."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import h5py
import numpy as np
import pytest

from bundle.format.manifest import Segment, Table, TableSource
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import VerificationFailed
from export.verify.table_rows import verify_tables
from tests.export.checkpoint.tensor_bundles import write_bundle

ROWS = 5000
DIM = 3
VALUES = np.random.default_rng(5).standard_normal((ROWS, DIM)).astype(np.float32)


class Pair(NamedTuple):
    checkpoint: Checkpoint
    root: Path
    table: Table


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A checkpoint in slices, and a bundle of it in two segments, the second behind 7
    other bytes.
    """
    boxes = {"t": [[(0, 1234), (0, -1)], [(1234, ROWS - 1234), (0, -1)]]}
    write_bundle(tmp_path / "ckpt", {"t": VALUES}, boxes=boxes)
    segments = []
    for number, (first, rows, offset) in enumerate(((0, 3000, 0), (3000, 2000, 7))):
        data = VALUES[first : first + rows].tobytes()
        (tmp_path / f"s{number}").write_bytes(bytes(offset) + data)
        crc = google_crc32c.value(data)
        segments.append(
            Segment(
                file=f"s{number}",
                offset=offset,
                first_row=first,
                rows=rows,
                crc32c=crc,
                blocks=(crc,),
            )
        )
    source = TableSource(layout="plain", key="t")
    table = Table(rows=ROWS, dim=DIM, dtype="float32", segments=tuple(segments), source=source)
    return Pair(open_checkpoint(tmp_path), tmp_path, table)


def in_chunks(pair: Pair, rows: int) -> Pair:
    """The same table, of a checkpoint in chunks of so many rows."""
    path = pair.root / "t.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=VALUES, chunks=(rows, DIM), compression="lzf")
    return pair._replace(checkpoint=open_checkpoint(path))


def check(pair: Pair, rows: int | None = 4096, **changed: Any) -> Any:
    return verify_tables(
        pair.checkpoint, pair.root, {"t": pair.table.model_copy(update=changed)}, rows
    )["t"]


def alter(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("rows", "compared"),
    [(None, ROWS), (100, 100), (134, 134), (262, 262), (ROWS, ROWS), (10 * ROWS, ROWS), (2, 2)],
)
def test_verify_tables_equal_rows_are_counted(pair: Pair, rows: int | None, compared: int) -> None:
    assert check(pair, rows).rows_compared == compared


@pytest.mark.parametrize("chunk_rows", [1, 700, ROWS])
@pytest.mark.parametrize("rows", [None, 100, ROWS])
def test_verify_tables_of_an_array_names_the_library_that_decoded_it(
    pair: Pair, rows: int | None, chunk_rows: int
) -> None:
    assert check(pair, rows).decoder is None
    found = check(in_chunks(pair, chunk_rows), rows)
    assert found.rows_compared == (rows or ROWS)
    assert found.decoder == f"h5py {h5py.__version__}"


@pytest.mark.parametrize(("chunk_rows", "first"), [(None, 100), (1, 2500), (700, 2500)])
def test_verify_tables_compares_an_array_from_its_end_which_was_decoded_last(
    pair: Pair, chunk_rows: int | None, first: int
) -> None:
    data = np.fromfile(pair.root / "s0", "<f4").reshape(-1, DIM)
    data[[100, 2500]] += 1
    data.tofile(pair.root / "s0")
    with pytest.raises(VerificationFailed, match=f"row {first} differs"):
        check(pair if chunk_rows is None else in_chunks(pair, chunk_rows), ROWS)


@pytest.mark.parametrize(("row", "rows"), [(0, 20), (2999, 20), (1400, None), (1399, ROWS)])
def test_verify_tables_row_that_an_array_has_elsewhere_is_found(
    pair: Pair, row: int, rows: int | None
) -> None:
    data = np.fromfile(pair.root / "s0", "<f4").reshape(-1, DIM)
    data[row] = VALUES[(row + 700) % ROWS]
    data.tofile(pair.root / "s0")
    with pytest.raises(VerificationFailed, match=f"row {row} differs"):
        check(in_chunks(pair, 700), rows)


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        *((row, None) for row in (1, 2999, 3000, 3777)),
        *((row, 20) for row in (0, 1233, 1234, 2999, 3000, ROWS - 1)),
    ],
)
def test_verify_tables_in_full_or_at_the_ends_of_segments_and_slices_finds_any_flipped_bit(
    pair: Pair, row: int, rows: int | None
) -> None:
    file, at = ("s0", 12 * row) if row < 3000 else ("s1", 7 + 12 * (row - 3000))
    alter(pair.root / file, at + 9)
    with pytest.raises(
        VerificationFailed, match=f"'t': row {row} differs from the checkpoint, first in column 2"
    ):
        check(pair, rows)


def test_verify_tables_sample_leaves_no_long_run_of_rows_out(pair: Pair) -> None:
    """A sample of 100 rows, half of them at random, has one in every interval of 100 rows."""
    for row in range(1300, 1500):
        alter(pair.root / "s0", 12 * row)
    with pytest.raises(VerificationFailed, match=r"'t': row 1[34]\d\d differs"):
        check(pair, 100)


def test_verify_tables_large_sample_needs_no_memory_for_the_rows_of_the_table(
    tmp_path: Path,
) -> None:
    rows = 4_000_000
    values = np.zeros((rows, 1), np.float32)
    write_bundle(tmp_path / "ckpt", {"t": values})
    (tmp_path / "s0").write_bytes(values.tobytes())
    segment = Segment(file="s0", first_row=0, rows=rows, crc32c=0, blocks=())
    source = TableSource(layout="plain", key="t")
    table = Table(rows=rows, dim=1, dtype="float32", segments=(segment,), source=source)
    checkpoint = open_checkpoint(tmp_path)
    tracemalloc.start()
    try:
        verify_tables(checkpoint, tmp_path, {"t": table}, rows // 40)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < rows  # one number per row of the table would take eight times as much


@pytest.mark.parametrize(("rows", "dim"), [(4990, 3), (5000, 2), (1, 1), (1300, 3)])
@pytest.mark.parametrize("compared", [None, 50])
def test_verify_tables_padding_of_a_plain_variable_is_no_part_of_the_table(
    tmp_path: Path, rows: int, dim: int, compared: int | None
) -> None:
    boxes: Any = {"t": [[(0, 1234), (0, -1)], [(1234, ROWS - 1234), (0, -1)]]}
    write_bundle(tmp_path / "ckpt", {"t": VALUES}, boxes=boxes)
    data = VALUES[:rows, :dim].tobytes()
    (tmp_path / "s0").write_bytes(data)
    crc = google_crc32c.value(data)
    segment = Segment(file="s0", first_row=0, rows=rows, crc32c=crc, blocks=(crc,))
    source = TableSource(layout="plain", key="t")
    table = Table(rows=rows, dim=dim, dtype="float32", segments=(segment,), source=source)
    checks = verify_tables(open_checkpoint(tmp_path), tmp_path, {"t": table}, compared)
    assert checks["t"].rows_compared == min(rows, compared or rows)


def test_verify_tables_segment_cut_short_or_missing_is_named(pair: Pair) -> None:
    whole = (pair.root / "s1").read_bytes()
    (pair.root / "s1").write_bytes(whole[:-1])
    with pytest.raises(VerificationFailed, match=r"'s1' has .* cut short"):
        check(pair, 10)
    (pair.root / "s1").unlink()
    with pytest.raises(VerificationFailed, match=r"'t': its rows cannot be read: .*'s1'"):
        check(pair, 10)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"dim": 4}, r"is \[5000, 4\] in the bundle, laid out as plain in float32 \[5000, 3\]"),
        ({"dtype": "float16"}, "is of float16"),
        ({"source": TableSource(layout="plain", key="gone")}, "has no variable 'gone'"),
    ],
)
def test_verify_tables_table_that_is_not_the_variable_is_refused(
    pair: Pair, changed: dict[str, Any], what: str
) -> None:
    with pytest.raises(VerificationFailed, match=what):
        check(pair, **changed)


def test_comparison_of_every_row_holds_a_few_blocks_of_8_mib(tmp_path: Path) -> None:
    values = np.zeros((1 << 18, 64), np.float32)
    write_bundle(tmp_path / "ckpt", {"t": values})
    values.tofile(tmp_path / "s")
    segment = Segment(file="s", first_row=0, rows=len(values), crc32c=0, blocks=())
    source = TableSource(layout="plain", key="t")
    table = Table(rows=len(values), dim=64, dtype="float32", segments=(segment,), source=source)
    checkpoint = open_checkpoint(tmp_path)
    tracemalloc.start()
    try:
        checks = verify_tables(checkpoint, tmp_path, {"t": table}, len(values))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert checks["t"].rows_compared == len(values)
    assert peak < 48 << 20 < values.nbytes


@pytest.mark.parametrize(
    ("trained", "stored", "equal"),
    [(np.nan, -np.nan, True), (np.nan, 1.0, False), (1.0, np.nan, False), (0.0, -0.0, False)],
)
def test_verify_tables_a_value_that_is_no_number_equals_any_other_such_value(
    tmp_path: Path, trained: float, stored: float, equal: bool
) -> None:
    write_bundle(tmp_path / "ckpt", {"t": np.array([[1.0, trained]], np.float32)})
    np.array([[1.0, stored]], np.float32).tofile(tmp_path / "s0")
    segment = Segment(file="s0", first_row=0, rows=1, crc32c=0, blocks=())
    source = TableSource(layout="plain", key="t")
    table = Table(rows=1, dim=2, dtype="float32", segments=(segment,), source=source)
    checkpoint = open_checkpoint(tmp_path)
    if equal:
        assert verify_tables(checkpoint, tmp_path, {"t": table}, 1)["t"].rows_compared == 1
        return
    with pytest.raises(VerificationFailed, match=r"row 0 differs .* first in column 1"):
        verify_tables(checkpoint, tmp_path, {"t": table}, 1)
