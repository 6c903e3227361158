"""Segments with their deltas as whole files, which a service writes beside a bundle and maps in
place of both.

A whole file has the segment's rows from its first byte on, and their crc32c in its name. It appears
under its name once its bytes match that checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, DigestMismatch
from bundle.format import paths
from bundle.format.checksums import digest
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.manifest import Manifest
from bundle.format.tables import Segment, Table
from bundle.storage import files
from bundle.tables.row_deltas import MappedDelta, lay_over_range, open_deltas
from bundle.tables.segment_writer import SegmentWriter

PIECE_BYTES = 4 << 20
"""The number of bytes that are merged at a time."""


class UnmergedSegment(NamedTuple):
    """A segment that has deltas.

    Attributes:
      segment: The segment, all of its rows.
      row_bytes: The number of bytes of a row.
    """

    segment: Segment
    row_bytes: int

    @property
    def bytes(self) -> int:
        """The size of the whole file."""
        return self.segment.rows * self.row_bytes

    @property
    def file(self) -> str:
        """The whole file."""
        return _whole_file(self.segment)


def unmerged_segments(table: Table) -> Iterator[UnmergedSegment]:
    """Yields the segments of a table, of rows and of scales, that have deltas."""
    for segments, row_bytes in ((table.segments, table.row_bytes), (table.scales, SCALE_BYTES)):
        for segment in segments:
            if segment.deltas:
                yield UnmergedSegment(segment, row_bytes)


def with_whole_files(bundle: Path, table: Table) -> Table:
    """Returns a table whose segments are whole files where there are some.

    Args:
      bundle: The directory of the bundle.
      table: The table, or a range of its rows (`table_of_rows`).
    """

    def replaced(segment: Segment, row_bytes: int) -> Segment:
        if not segment.deltas:
            return segment
        file = _whole_file(segment)
        # A shard may have its first row within the segment.
        offset = segment.deltas[0].skipped_rows * row_bytes
        if _size(bundle, file) < offset + segment.rows * row_bytes:
            return segment
        update = {"file": file, "offset": offset, "crc32c": segment.result}
        return segment.model_copy(update={**update, "blocks": (), "deltas": ()})

    segments = tuple(replaced(segment, table.row_bytes) for segment in table.segments)
    scales = tuple(replaced(segment, SCALE_BYTES) for segment in table.scales)
    return table.model_copy(update={"segments": segments, "scales": scales})


def remove_damaged(
    bundle: Path, table: Table, pause: Callable[[], object] = lambda: None
) -> list[str]:
    """Compares the whole files of a table with their checksums and removes those that differ;
    returns them, and those that are gone.

    Args:
      bundle: The directory of the bundle.
      table: The table, with its whole files (`with_whole_files`).
      pause: A function that is called after each piece that was read.

    Raises:
      OSError: A file cannot be read or removed.
    """
    damaged = []
    for segment in (*table.segments, *table.scales):
        if not paths.is_written_beside(segment.file):
            continue
        path = bundle / segment.file
        try:
            with path.open("rb", buffering=0) as stream:
                crc32c = digest(stream, None, pause).crc32c
        except FileNotFoundError:
            # Another process has found it to be damaged.
            damaged.append(segment.file)
            continue
        if crc32c != segment.crc32c:
            path.unlink(missing_ok=True)
            damaged.append(segment.file)
    return damaged


def remove_unequal(
    bundle: Path, table: Table, pause: Callable[[], object] = lambda: None
) -> list[str]:
    """Compares the whole files of a table, byte by byte, with its segments and their deltas, and
    removes those that differ; returns them.

    A checksum shows damage alone. This also shows what somebody else has put in the place of a
    whole file, if the segments and the deltas are known to be right.

    Args:
      bundle: The directory of the bundle.
      table: The table, all of its rows.
      pause: A function that is called after each piece that was compared.

    Raises:
      BundleError: A segment or a delta is damaged.
      OSError: A file cannot be read or removed.
    """
    removed = []
    for unmerged in unmerged_segments(table):
        size = _size(bundle, unmerged.file)
        if size >= 0 and not (size == unmerged.bytes and _is_equal(bundle, unmerged, pause)):
            (bundle / unmerged.file).unlink(missing_ok=True)
            removed.append(unmerged.file)
    return removed


def remove_others(bundle: Path, manifest: Manifest) -> None:
    """Removes what is no whole file of a bundle from the directory of whole files: unfinished
    files, and those of another bundle that had the same directory. No other process may write
    there.

    Raises:
      OSError: A file cannot be removed.
    """
    expected = set()
    for table in manifest.tables.values():
        for unmerged in unmerged_segments(table):
            expected.add(bundle / unmerged.file)
    for directory, _, names in os.walk(bundle / paths.WHOLE):
        for name in names:
            path = Path(directory, name)
            if path not in expected:
                path.unlink()


def write_whole(
    bundle: Path, unmerged: UnmergedSegment, pause: Callable[[int], object] = lambda _: None
) -> bool:
    """Writes the whole file of a segment; returns False if it exists.

    Args:
      bundle: The directory of the bundle.
      unmerged: The segment.
      pause: A function that is called after each piece, with its number of bytes.

    Raises:
      DigestMismatch: The segment or a delta is damaged; names the file. Nothing was written.
      UnsafePath: A file lies outside the bundle.
      OSError: The disk is full, broken or read-only; nothing was written.
    """
    segment = unmerged.segment
    if _size(bundle, unmerged.file) == unmerged.bytes:
        return False
    deltas = open_deltas(bundle, segment, unmerged.row_bytes)
    with SegmentWriter(bundle / unmerged.file) as writer:
        for stored in _merged(bundle, unmerged, deltas):
            writer.write(stored)
            pause(stored.nbytes)
        if writer.crc32c != segment.result:
            for delta in deltas:
                delta.check_rows()
            raise DigestMismatch(
                f"file {segment.file!r} differs from its checksum: with its deltas, its crc32c is "
                f"{writer.crc32c}, {segment.result} was expected; copy the bundle again"
            )
    return True


def _merged(
    bundle: Path, unmerged: UnmergedSegment, deltas: Sequence[MappedDelta]
) -> Iterator[NDArray[np.uint8]]:
    """Yields the rows of a segment under its deltas, [n, row_bytes] uint8, each time in the same
    memory.
    """
    segment, row_bytes = unmerged
    piece = np.empty((max(1, PIECE_BYTES // row_bytes), row_bytes), np.uint8)
    with files.locate(bundle, segment.file).open("rb", buffering=0) as base:
        base.seek(segment.offset)
        for first in range(0, segment.rows, len(piece)):
            stored = piece[: segment.rows - first]
            _fill(stored, base, segment)
            lay_over_range(deltas, first, stored)
            yield stored


def _is_equal(bundle: Path, unmerged: UnmergedSegment, pause: Callable[[], object]) -> bool:
    """Returns whether a whole file has the rows of its segment and deltas."""
    deltas = open_deltas(bundle, unmerged.segment, unmerged.row_bytes)
    with files.locate(bundle, unmerged.file).open("rb") as whole:
        for stored in _merged(bundle, unmerged, deltas):
            if whole.read(stored.nbytes) != stored.tobytes():
                return False
            pause()
    return True


def _whole_file(segment: Segment) -> str:
    return paths.whole_segment(segment.file, segment.result)


def _size(bundle: Path, file: str) -> int:
    """Returns the size of a file; -1: there is none."""
    try:
        return files.size(bundle, file)
    except BundleError:
        return -1


def _fill(stored: NDArray[np.uint8], base: RawIOBase, segment: Segment) -> None:
    """Reads the next rows of a segment's file.

    Raises:
      DigestMismatch: The file ends before.
    """
    unread = stored.reshape(-1).data
    while unread:
        count = base.readinto(unread)
        if not count:
            raise DigestMismatch(f"file {segment.file!r} was cut short; copy the bundle again")
        unread = unread[count:]
