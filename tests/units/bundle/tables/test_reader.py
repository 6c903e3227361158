from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from bundle.arithmetic import ceil_div
from bundle.errors import RowOutOfRange
from bundle.format import manifest as entries
from bundle.format.checksums import crc32c
from bundle.storage.residency import PIECE_BYTES
from bundle.tables.reader import SYNC_BYTES, SegmentWriter, TableReader

SOURCE = entries.TableSource(layout="plain", key="k")


def table(file: str, offset: int, rows: int, dim: int, dtype: str = "float32") -> entries.Table:
    size = rows * dim * (4 if dtype == "float32" else 2)
    segment = entries.Segment(
        file=file,
        offset=offset,
        first_row=0,
        rows=rows,
        crc32c=0,
        blocks=(0,) * ceil_div(size, entries.BLOCK_BYTES),
    )
    return entries.Table.model_validate(
        {"rows": rows, "dim": dim, "dtype": dtype, "segments": (segment,), "source": SOURCE}
    )


@pytest.mark.parametrize("row", [-1, 10, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_gather_of_a_row_outside_raises_and_names_it(tmp_path: Path, row: int) -> None:
    (tmp_path / "t").write_bytes(bytes(10 * 4 * 2))
    reader = TableReader(tmp_path, table("t", 0, 10, 2))
    with pytest.raises(RowOutOfRange, match=str(row)):
        reader.gather(np.array([0, row]))


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 11), (10, 1), (3, -1)])
def test_read_outside_the_table_raises(tmp_path: Path, first: int, count: int) -> None:
    (tmp_path / "t").write_bytes(bytes(10 * 4 * 2))
    with pytest.raises(RowOutOfRange):
        TableReader(tmp_path, table("t", 0, 10, 2)).read(first, count)


@pytest.mark.parametrize("native", [True, False])
def test_warm_brings_rows_and_scales_into_memory(tmp_path: Path, native: bool) -> None:
    rows = 5 << 20
    for name, size in (("t", 3 + rows), ("s", 4 * rows)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    segments = table("t", 3, rows, 1).segments
    page = {"rows": rows, "dim": 1, "dtype": "int8", "segments": segments, "source": SOURCE}
    page["scales"] = (segments[0].model_copy(update={"file": "s", "offset": 0, "blocks": ()}),)
    page["segments"] = (segments[0].model_copy(update={"blocks": ()}),)
    reader = TableReader(tmp_path, entries.Table.model_validate(page), native=native)
    assert 0 <= reader.resident_bytes() <= 5 * rows + 3
    assert rows * 5 <= sum(reader.warm()) <= rows * 5 + 3
    assert reader.resident_bytes() >= 5 * rows
    warming = reader.warm()
    assert next(warming) == PIECE_BYTES
    reader.close()
    assert list(warming) == []
    assert reader.resident_bytes() == 0


def test_segment_writer_left_by_an_exception_removes_its_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), SegmentWriter(tmp_path / "t") as writer:  # noqa: PT012
        writer.write(b"abc")
        raise KeyError
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("placed", [False, True])
def test_segment_written_in_pieces_is_whole_and_so_is_its_digest(
    tmp_path: Path, placed: bool
) -> None:
    data = np.random.default_rng(3).integers(0, 256, 2 * SYNC_BYTES + 5, np.uint8)
    parts = np.array_split(data, 7)
    pieces = list(zip(accumulate(map(len, parts), initial=0), parts, strict=False))
    with SegmentWriter(tmp_path / "deep" / "t", size=data.size if placed else None) as writer:
        for offset, piece in reversed(pieces) if placed else pieces:
            if placed:
                writer.write_at(offset, piece)
            else:
                writer.write(piece)
    assert (np.fromfile(tmp_path / "deep" / "t", np.uint8) == data).all()
    digest = writer.close()
    starts = range(0, data.size, entries.BLOCK_BYTES)
    assert (digest.bytes, digest.crc32c) == (data.size, crc32c(data))
    assert digest.blocks == tuple(
        crc32c(data[start : start + entries.BLOCK_BYTES]) for start in starts
    )


def test_segment_writers_fill_their_ranges_of_one_file_and_leave_the_rest_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").write_bytes(b"-" * 12)
    with SegmentWriter(tmp_path / "t", offset=2) as writer:
        writer.write(b"ab")
        writer.write(b"c")
    with SegmentWriter(tmp_path / "t", size=4, offset=7) as placed:
        placed.write_at(2, b"fg")
        placed.write_at(0, b"de")
    assert (tmp_path / "t").read_bytes() == b"--abc--defg-"
    assert (writer.close().crc32c, placed.close().crc32c) == (crc32c(b"abc"), crc32c(b"defg"))


def test_segment_writer_left_by_an_exception_keeps_a_file_that_others_fill_too(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").write_bytes(b"-" * 4)
    with pytest.raises(KeyError), SegmentWriter(tmp_path / "t", offset=1) as writer:  # noqa: PT012
        writer.write(b"a")
        raise KeyError
    assert (tmp_path / "t").stat().st_size == 4


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's count of requests")
@pytest.mark.parametrize("placed", [False, True])
def test_segment_is_written_in_requests_for_which_linux_takes_small_folios(
    tmp_path: Path, placed: bool
) -> None:
    data = np.zeros(8 << 20, np.uint8)
    before = requests_to_write()
    with SegmentWriter(tmp_path / "t", size=data.size if placed else None) as writer:
        if placed:
            writer.write_at(0, data)
        else:
            writer.write(data)
    assert requests_to_write() - before >= data.size // (128 << 10)


def requests_to_write() -> int:
    """How often this process has called the kernel to write."""
    (count,) = re.findall(r"^syscw: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(count)
