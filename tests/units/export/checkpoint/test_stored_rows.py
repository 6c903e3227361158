"""Rows of a variable in slices: what is read, and what is summed of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from export.checkpoint import stored_rows
from export.checkpoint.bands import SlicesOverlap
from export.checkpoint.stored_rows import SliceRows
from export.checkpoint.variables import Slice
from object_store.remote_path import RemotePath
from tests.units.object_store.memory_stores import CountedStore

ROWS = 37
DIM = 6
ROW_BYTES = 4 * DIM
VALUES = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
WHOLE = [(0, 0, ROWS, DIM)]
RANGES = [(0, 0, 10, DIM), (10, 0, 1, DIM), (11, 0, 26, DIM)]
GRID = [(0, 0, 10, DIM), (10, 0, 20, 4), (10, 4, 9, 2), (19, 4, 11, 2), (30, 0, 7, DIM)]
CUTS = {"whole": WHOLE, "ranges": RANGES, "grid": GRID}
"""First row, first column, rows and columns of each slice."""


def stored_values(box: tuple[int, int, int, int]) -> bytes:
    row, column, rows, columns = box
    return VALUES[row : row + rows, column : column + columns].tobytes()


def slices_in(
    file: Path | RemotePath, boxes: Iterable[tuple[int, int, int, int]], damaged: int = -1
) -> list[Slice]:
    """Writes slices to a file, the last one first; of one of them another checksum is noted."""
    content = b"lead"
    slices = []
    for number, box in reversed(list(enumerate(boxes))):
        data = stored_values(box)
        crc = google_crc32c.value(data) ^ (number == damaged)
        position = (box[0], box[1]), (box[2], box[3])
        slices.append(Slice(str(file), len(content), len(data), crc, *position))
        content += data
    if isinstance(file, Path):
        file.write_bytes(content)
    else:
        file.write(content)
    return slices


def opened(slices: list[Slice], first: int = 0, rows: int = ROWS) -> SliceRows:
    return SliceRows(slices, DIM, 4, first, rows)


def read(rows: SliceRows, first: int, count: int) -> NDArray[np.float32]:
    buffer = np.empty((count, ROW_BYTES), np.uint8)
    rows.read_into(first, buffer)
    return buffer.view(np.float32)


@pytest.mark.parametrize("cut", CUTS)
def test_rows_are_read_from_all_slices_that_hold_them(tmp_path: Path, cut: str) -> None:
    slices = slices_in(tmp_path / "data", CUTS[cut])
    with opened(slices) as rows:
        assert rows.undivided is (cut != "grid")
        for first in range(ROWS):
            for count in range(ROWS - first + 1):
                actual = read(rows, first, count)
                np.testing.assert_array_equal(actual, VALUES[first : first + count])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("remote", [False, True])
def test_ranges_of_rows_are_read_one_behind_the_other(
    tmp_path: Path, cut: str, remote: bool
) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/data")
    slices = slices_in(store if remote else tmp_path / "data", CUTS[cut])
    ranges = [(30, 7), (9, 1), (9, 2), (10, 1), (0, 10), (8, 25), (5, 0)]
    buffer = np.empty((46, ROW_BYTES), np.uint8)
    with opened(slices) as rows:
        rows.read_each(iter(ranges), buffer)
    expected = np.concatenate([VALUES[first : first + count] for first, count in ranges])
    np.testing.assert_array_equal(buffer.view(np.float32), expected)
    if remote and cut == "whole":
        requested = (CountedStore.requests[tmp_path.name], CountedStore.bytes_read[tmp_path.name])
        assert requested == (6, 46 * ROW_BYTES)


class GatheringStore(CountedStore):
    """A store that responds to no request before it has three."""

    protocol = "gathering"
    requested = threading.Barrier(3, timeout=20)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        self.requested.wait()
        return super().cat_file(path, start, end, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("gathering://", "counted://")))


fsspec.register_implementation("gathering", GatheringStore, clobber=True)


def test_ranges_of_rows_are_fetched_from_a_store_at_the_same_time(tmp_path: Path) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/data")
    slices = [
        part._replace(file=part.file.replace("counted://", "gathering://"))
        for part in slices_in(store, WHOLE)
    ]
    buffer = np.empty((6, ROW_BYTES), np.uint8)
    with opened(slices) as rows:
        rows.read_each([(30, 1), (3, 2), (7, 3)], buffer)
    expected = np.concatenate([VALUES[30:31], VALUES[3:5], VALUES[7:10]])
    np.testing.assert_array_equal(buffer.view(np.float32), expected)


def test_files_are_closed_at_the_end(tmp_path: Path) -> None:
    def are_open() -> bool:
        links = [
            os.readlink(child) for child in Path("/proc/self/fd").iterdir() if child.is_symlink()
        ]
        return str(tmp_path / "data") in links

    with opened(slices_in(tmp_path / "data", WHOLE)) as rows:
        read(rows, 0, 1)
        assert are_open()
    assert not are_open()


def test_slices_that_overlap_in_the_rows_are_rejected(tmp_path: Path) -> None:
    slices = slices_in(tmp_path / "data", [(0, 0, 10, DIM), (9, 0, 28, DIM)])
    with pytest.raises(SlicesOverlap):
        opened(slices)
    with opened(slices, 10, 27) as rows:
        np.testing.assert_array_equal(read(rows, 10, 27), VALUES[10:])


@pytest.mark.parametrize("cut", CUTS)
def test_sums_of_tasks_are_together_those_of_the_slices(tmp_path: Path, cut: str) -> None:
    slices = slices_in(tmp_path / "data", CUTS[cut])
    totals: dict[int, tuple[int, int]] = {}
    for first, end in ((20, ROWS), (0, 5), (5, 20)):
        with opened(slices, first, end - first) as rows:
            assert rows.sums() == ()
            middle = (first + end) // 2
            read(rows, middle, end - middle)
            read(rows, first, middle - first)
            for source in rows.sums():
                assert source.file == "data"
                count, crc = totals.get(source.slice_offset, (0, 0))
                totals[source.slice_offset] = count + source.bytes, crc ^ source.crc32c
            assert rows.damaged() is None
    assert totals == {part.offset: (part.bytes, part.crc32c) for part in slices}


def test_slice_that_is_read_whole_is_held_against_its_checksum(tmp_path: Path) -> None:
    slices = slices_in(tmp_path / "data", RANGES, damaged=2)
    damaged = slices[0]
    assert damaged.starts == (11, 0)
    with opened(slices) as rows:
        read(rows, 0, 30)
        assert rows.damaged() is None
        read(rows, 30, 7)
        assert rows.damaged() == damaged
    with opened(slices) as rows:
        read(rows, 12, 25)
        assert rows.damaged() is None
    with opened([damaged._replace(crc32c=None), *slices[1:]]) as rows:
        read(rows, 0, ROWS)
        assert rows.damaged() is None


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("cut", ["whole", "ranges"])
def test_pieces_are_the_bytes_of_all_rows_with_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, piece_bytes: int, remote: bool
) -> None:
    monkeypatch.setattr(stored_rows, "PIECE_BYTES", 300)
    monkeypatch.setattr(stored_rows, "REMOTE_PIECE_BYTES", 500)
    store = RemotePath(f"counted://{tmp_path.name}/data")
    slices = slices_in(store if remote else tmp_path / "data", CUTS[cut])
    with opened(slices, 3, 30) as rows:
        content = b""
        sizes = set()
        for piece, crc in rows.pieces(lambda: piece_bytes):
            sizes.add(piece.size)
            assert crc == google_crc32c.value(piece.tobytes())
            content += piece.tobytes()
        assert content == VALUES[3:33].tobytes()
        assert max(sizes) == min(piece_bytes, 500 if remote else 300)
        assert sum(source.bytes for source in rows.sums()) == 30 * ROW_BYTES
        sums = rows.sums()
    with opened(slices, 3, 30) as rows:
        read(rows, 3, 30)
        assert rows.sums() == sums
