"""Rows that differ from the checkpoint are found, wherever they are compared."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import NonFiniteRows, Segment, Table, TableSource
from bundle.tables.reader import TableReader
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import VerificationFailed
from export.verify import table_rows
from export.verify.table_rows import read_rows, verify_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle

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
    """The same table, of a checkpoint in chunks of `rows` rows."""
    path = pair.root / "t.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=VALUES, chunks=(rows, DIM), compression="lzf")
    return pair._replace(checkpoint=open_checkpoint(path))


def check(pair: Pair, rows: int | None = 4096, **changed: Any) -> Any:
    return verify_tables(
        pair.checkpoint, pair.root, {"t": pair.table.model_copy(update=changed)}, rows
    )["t"]


def alter(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
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
    table_check = check(in_chunks(pair, chunk_rows), rows)
    assert table_check.rows_compared == (rows or ROWS)
    assert table_check.decoder == f"h5py {h5py.__version__}"


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
    file, offset = ("s0", 12 * row) if row < 3000 else ("s1", 7 + 12 * (row - 3000))
    alter(pair.root / file, offset + 9)
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
    rows = 400_000
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


@pytest.mark.parametrize(
    ("rows", "dim"), [(4990, 3), (5000, 2), (1, 1), (1300, 3), (1234, 3), (900, 3)]
)
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
def test_verify_tables_table_that_is_not_the_variable_is_rejected(
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
        allowed = table.model_copy(update={"non_finite": NonFiniteRows(rows=1, first_row=0)})
        assert verify_tables(checkpoint, tmp_path, {"t": allowed}, 1)["t"].rows_compared == 1
        with pytest.raises(VerificationFailed, match="'t': row 0 holds NaN or an infinity"):
            verify_tables(checkpoint, tmp_path, {"t": table}, 1)
        return
    with pytest.raises(VerificationFailed, match=r"row 0 differs .* first in column 1"):
        verify_tables(checkpoint, tmp_path, {"t": table}, 1)


class Noting(TableReader):
    """Notes which rows are read at a time, and how much of its file is in memory by then."""

    def __init__(self, root: Path, table: Table) -> None:
        super().__init__(root, table)
        self.blocks: list[list[int]] = []
        self.resident_kib: list[int] = []
        self.watched = False
        self._file = root / table.segments[0].file

    def gather(
        self, rows: NDArray[np.int64], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        self.blocks.append(rows.tolist())
        if self.watched:
            self.resident_kib.append(resident_kib(self._file))
        return super().gather(rows, out)

    @property
    def rows_read(self) -> list[int]:
        return [row for block in self.blocks for row in block]


def resident_kib(file: Path) -> int:
    """Returns how much of a file's maps is in the memory of this process."""
    maps = Path("/proc/self/smaps").read_text().split(f" {file}\n")[1:]
    return sum(int(mapping.split("Rss:")[1].split()[0]) for mapping in maps)


def noted(
    pair: Pair, rows: int | None, table: Table | None = None, *, watched: bool = False
) -> Noting:
    """Compares a table that is opened elsewhere; returns its reader."""
    table = table or pair.table
    reader = Noting(pair.root, table)
    reader.watched = watched
    elsewhere = pair.root / "nothing"
    checks = verify_tables(
        pair.checkpoint, elsewhere, {"t": table}, rows, open_table=lambda _: reader
    )
    assert checks["t"].rows_compared == len(reader.rows_read)
    return reader


@pytest.mark.parametrize("rows", [None, ROWS, 2 * ROWS])
def test_verify_tables_reads_all_rows_in_their_order_a_block_at_a_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    monkeypatch.setattr(table_rows, "_BLOCK_BYTES", 12 * 700 + 11)
    reader = noted(pair, rows)
    assert reader.rows_read == list(range(ROWS))
    assert [len(block) for block in reader.blocks] == [700] * 7 + [100]


def test_verify_tables_elsewhere_compares_no_digests_again(pair: Pair) -> None:
    wrong = tuple(
        segment.model_copy(update={"crc32c": 1, "blocks": (1,)}) for segment in pair.table.segments
    )
    table = pair.table.model_copy(update={"segments": wrong})
    assert len(noted(pair, None, table).rows_read) == ROWS
    with pytest.raises(VerificationFailed, match="segment 's0' does not match its digests"):
        check(pair, None, segments=wrong)


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (15, 1), (16, 1), (64, 4), (4096, 256)])
def test_verify_tables_elsewhere_reads_groups_of_neighbors(
    pair: Pair, rows: int, groups: int
) -> None:
    reader = noted(pair, rows)
    for block in reader.blocks:
        assert block == sorted(set(block))
        assert len(block) <= 1024
        runs = np.split(np.array(block), np.flatnonzero(np.diff(block) != 1) + 1)
        assert all(len(run) >= 16 or run[-1] == ROWS - 1 for run in runs)
    compared_rows = sum(len(block) for block in reader.blocks)
    assert groups * 8 < compared_rows <= groups * 16 or groups == 1
    assert len(reader.blocks) >= max(1, groups // 64)


@pytest.mark.parametrize("rows", [2, 3, 20, 101, 1000, ROWS - 1])
def test_verify_tables_samples_as_many_different_rows_as_it_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    readers: list[Noting] = []

    def opened(root: Path, table: Table) -> Noting:
        readers.append(Noting(root, table))
        return readers[-1]

    monkeypatch.setattr(table_rows, "TableReader", opened)
    assert check(pair, rows).rows_compared == rows
    (reader,) = readers
    compared_rows = reader.rows_read
    assert len(set(compared_rows)) == rows
    assert max(len(block) for block in reader.blocks) <= 128
    edges = {0, 1233, 1234, 2999, 3000, ROWS - 1}
    assert len(edges & set(compared_rows)) == len(edges) or rows // 2 < len(edges)
    widest = max(np.diff(sorted({0, ROWS - 1, *compared_rows})))
    assert widest <= 2 * math.ceil(ROWS / max(1, rows - len(edges))) or rows < 4
    # Edges are read with the chunks that were just read, so no block lies far before another.
    firsts = [min(block) for block in reader.blocks]
    assert all(later > first - 128 * ROWS / rows - 1 for first, later in pairwise(firsts))


def test_verify_tables_lets_go_of_the_pages_that_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "_BLOCK_BYTES", 64 << 10)
    values = np.zeros((16_384, 64), np.float32)
    write_bundle(tmp_path / "ckpt", {"t": values})
    values.tofile(tmp_path / "s")
    segment = Segment(file="s", first_row=0, rows=len(values), crc32c=0, blocks=())
    source = TableSource(layout="plain", key="t")
    table = Table(rows=len(values), dim=64, dtype="float32", segments=(segment,), source=source)
    reader = noted(Pair(open_checkpoint(tmp_path), tmp_path, table), len(values), watched=True)
    assert len(reader.blocks) == 64
    assert max(reader.resident_kib) < 1024
    assert resident_kib(tmp_path / "s") == 0
    assert f"{tmp_path / 's'}\n" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("rows", [[5, 3, 4, 9, 0], [7, 7], [4999], []])
@pytest.mark.parametrize("chunk_rows", [None, 700])
def test_read_rows_gives_rows_in_the_order_in_which_they_are_named(
    pair: Pair, chunk_rows: int | None, rows: list[int]
) -> None:
    checkpoint = pair.checkpoint
    if chunk_rows is not None:
        checkpoint = in_chunks(pair, chunk_rows).checkpoint
    vectors = read_rows(checkpoint, pair.table.source, np.array(rows, np.int64))
    np.testing.assert_array_equal(vectors, VALUES[rows])
    assert vectors.dtype == np.float32


def test_read_rows_of_partitions_finds_each_in_its_lane(pair: Pair) -> None:
    source = TableSource(layout="mod", key="t", starts=(0, 2500))
    rows = np.array([3, 0, 4999, 2])
    vectors = read_rows(pair.checkpoint, source, rows)
    np.testing.assert_array_equal(vectors, VALUES[[2501, 0, 4999, 1]])


def test_verify_tables_of_a_variable_of_another_shape_says_what_both_are(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": VALUES.reshape(-1)})
    segment = Segment(file="s0", first_row=0, rows=ROWS, crc32c=0, blocks=())
    source = TableSource(layout="plain", key="t")
    table = Table(rows=ROWS, dim=DIM, dtype="float32", segments=(segment,), source=source)
    with pytest.raises(VerificationFailed) as failure:
        verify_tables(open_checkpoint(tmp_path), tmp_path, {"t": table})
    assert str(failure.value) == (
        f"table 't' is of float32 [5000, 3] in the bundle, float32 [15000] in checkpoint "
        f"{tmp_path / 'ckpt'}"
    )


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"blocks": ()}, True),  # a linked segment has none
        ({"crc32c": 1}, False),
        ({"crc32c": 1, "blocks": ()}, False),
        ({"blocks": (1,)}, False),
    ],
)
def test_verify_tables_in_full_compares_the_digests_that_a_segment_has(
    pair: Pair, changed: dict[str, Any], right: bool
) -> None:
    first, second = pair.table.segments
    segments = (first, second.model_copy(update=changed))
    if right:
        assert check(pair, None, segments=segments).rows_compared == ROWS
        return
    with pytest.raises(VerificationFailed, match="segment 's1' does not match its digests"):
        check(pair, None, segments=segments)
    assert check(pair, 100, segments=segments).rows_compared == 100
