"""A segment that shares the rows of an older version's: its files become links, and the rows that
differ a delta over them.

The older version is an opportunity, never a condition: whatever is wrong with it, or if too much
has changed, the segment is rejected and written whole. Only bytes decide: a checksum would take two
rows for the same ones sooner or later.
"""

from __future__ import annotations

import os
import secrets
import shutil
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import BundleError
from bundle.format import paths
from bundle.format.checksums import UnorderedDigest, contiguous
from bundle.format.manifest import File, Segment
from bundle.format.tables import DELTAS_MAX, Delta
from bundle.storage import files
from bundle.storage.integrity import check_file
from bundle.tables.row_deltas import (
    RANGE_ROWS,
    ROW_BYTES_MAX,
    DeltaWriter,
    MappedDelta,
    differing_rows,
    lay_over_range,
    open_deltas,
)
from export.tables.tasks import CHANGED_SHARE_MAX, HELD_BYTES_MAX, OlderSegment

if TYPE_CHECKING:
    from bundle.format.checksums import Bytes

SAMPLE_ROWS = 512
"""The number of rows that are compared first: of a large segment, hardly any."""
_SAMPLE_SHARE_MAX = 0.35
"""The largest share of changed rows in a sample. If a quarter of all rows changed, the share is
larger once in millions of times.
"""
_DELTA_ROWS_SHARE_MAX = 0.5
"""The largest number of rows in the deltas of a segment that gets another one, as a share of its
rows: what services map, and what the disk holds, stays below twice the segment.
"""
_COMPARED_BYTES = 1 << 20
"""The number of bytes that are compared at a time: fewer would take more steps, and more would
leave the cache.
"""


class OlderSegmentRejected(Exception):
    """A segment cannot share the rows of the older one, and is to be written whole.

    Attributes:
      file: The bundle path of the segment.
      link_problem: Why the older segment's files cannot be linked, or "".
    """

    def __init__(self, file: str, reason: str, link_problem: str = "") -> None:
        super().__init__(f"segment {file!r}: {reason}")
        self.file = file
        self.link_problem = link_problem


class _ChangedRows(NamedTuple):
    """Changed rows of one range that came together.

    Attributes:
      rows: [n] int64, their numbers in the segment, ascending.
      stored: [n, row_bytes] uint8.
    """

    rows: NDArray[np.int64]
    stored: NDArray[np.uint8]


class ComparedSegment:
    """Compares the rows of a new segment with those of an older one, and writes those that differ.

    Used as a context: left by an exception, it removes what is unfinished.

    Attributes:
      changed_rows: The number of rows so far that differ from those of the older segment.
    """

    def __init__(
        self,
        directory: Path,
        file: str,
        older: OlderSegment,
        row_bytes: int,
        attempts: Path | None = None,
    ) -> None:
        """Links the files of the older segment, and opens them.

        Args:
          directory: The directory where bundle paths begin.
          file: The bundle path of the segment.
          older: The older segment, of the same rows.
          row_bytes: The number of bytes of a row.
          attempts: The directory on the same disk where files lie until they are whole; None:
            beside the segment.

        Raises:
          OlderSegmentRejected: The older files are gone or damaged, or cannot be linked.
          OSError: The directory of the files cannot be made.
        """
        self.changed_rows = 0
        self._directory = directory
        self._file = file
        self._older = older.segment
        delta_rows = sum(delta.rows for delta in self._older.deltas)
        is_full = delta_rows > _DELTA_ROWS_SHARE_MAX * self._older.rows
        if is_full or len(self._older.deltas) == DELTAS_MAX:
            # One delta of all that differs from the file alone takes the place of these; if that is
            # too much, the segment is written whole.
            self._older = self._older.model_copy(update={"deltas": ()})
        self._row_bytes = row_bytes
        self._attempts = attempts
        path = directory / file
        if attempts is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        # What is compared is what is linked: nobody replaces the files in a directory of its own.
        self._links = (attempts or path.parent) / f".{path.name}-{secrets.token_hex(8)}"
        self._links.mkdir()
        try:
            self._linked = _link(Path(older.directory), self._older, self._links, file)
            self._deltas, self._base = self._open()
        except BaseException:
            shutil.rmtree(self._links, ignore_errors=True)
            raise
        rows = self._older.rows
        self._base_digest = UnorderedDigest(rows * row_bytes)
        self._digest = UnorderedDigest(rows * row_bytes)
        range_starts = np.arange(0, rows, RANGE_ROWS)
        self._missing_rows = np.minimum(rows - range_starts, RANGE_ROWS).tolist()
        """The number of rows of each range that did not come yet."""
        self._held: dict[int, list[_ChangedRows]] = {}
        """The changed rows of the ranges of which rows are missing."""
        self._held_bytes = 0
        self._delta: DeltaWriter | None = None
        self._buffer = np.empty(max(1, _COMPARED_BYTES // row_bytes) * row_bytes, np.uint8)

    def check_sample(self, sample: NDArray[np.int64], stored: NDArray[np.uint8]) -> None:
        """Rejects the older segment if more rows of a sample differ than a quarter of all allows.

        To find that out while rows are written would take longer than to write the segment.

        Args:
          sample: [n] int64, rows of the segment, chosen at random.
          stored: [n, row_bytes] uint8, these rows.

        Raises:
          OlderSegmentRejected: Too many differ, or the older segment cannot be read.
        """
        differing = 0
        for row, new in zip(sample.tolist(), stored, strict=True):
            old = self._read(row, 1)
            lay_over_range(self._deltas, row, old)
            differing += not np.array_equal(old[0], new)
        if differing > _SAMPLE_SHARE_MAX * sample.size:
            raise OlderSegmentRejected(self._file, "too many rows of a sample differ")

    def write_at(self, offset: int, data: Bytes) -> None:
        """Takes whole rows of the segment, each once, in any order.

        Args:
          offset: The position of the first row in the segment, in bytes.
          data: The rows, as they are stored.

        Raises:
          OlderSegmentRejected: The older segment cannot be read, or too many rows differ.
          OSError: The disk is full or broken.
        """
        flat = contiguous(data)
        self._digest.update_at(offset, flat)
        rows = flat.reshape(-1, self._row_bytes)
        first = offset // self._row_bytes
        step = self._buffer.size // self._row_bytes
        for start in range(0, len(rows), step):
            self._compare(first + start, rows[start : start + step])

    def close(self) -> Segment:
        """Ends the delta, gives all files their names, and returns the segment.

        Raises:
          OlderSegmentRejected: The older segment's file differs from its checksum.
          OSError: The disk is full or broken.
        """
        digest = self._digest.digest()
        # A new version never relies on damaged files, though it would read the right rows: no
        # checksum of its manifest would fit.
        if self._base_digest.digest().crc32c != self._older.crc32c:
            raise OlderSegmentRejected(self._file, "the older file differs from its checksum")
        deltas = tuple(
            delta.model_copy(update={"file": paths.delta(self._file, number)})
            for number, delta in enumerate(self._older.deltas, 1)
        )
        if self._delta is not None:
            delta_digest = self._delta.close(digest.crc32c)
            delta = Delta(
                file=self._delta_file,
                rows=self._delta.rows,
                bytes=delta_digest.bytes,
                crc32c=delta_digest.crc32c,
                blocks=delta_digest.blocks,
                result=digest.crc32c,
            )
            deltas = (*deltas, delta)
        path = self._directory / self._file
        path.parent.mkdir(parents=True, exist_ok=True)
        for link in self._links.iterdir():
            link.rename(path.with_name(link.name))
        self._release()
        files.sync(path.parent)
        return self._older.model_copy(update={"file": self._file, "deltas": deltas})

    @property
    def linked_bytes(self) -> int:
        """The number of bytes of the older segment's files."""
        size = self._older.rows * self._row_bytes
        return size + sum(delta.bytes for delta in self._older.deltas)

    @property
    def _delta_file(self) -> str:
        return paths.delta(self._file, len(self._older.deltas) + 1)

    def _open(self) -> tuple[list[MappedDelta], FileIO]:
        """Opens the deltas and the file of the older segment.

        Raises:
          OlderSegmentRejected: One of them, or the size of the older file, is wrong.
        """
        try:
            size = files.size(self._links, self._linked.file)
            if size != self._linked.rows * self._row_bytes:
                raise OlderSegmentRejected(self._file, f"the older file has {size} bytes")
            for delta in self._linked.deltas:
                file = File(path=delta.file, bytes=delta.bytes, crc32c=delta.crc32c)
                check_file(self._links, file)
            deltas = open_deltas(self._links, self._linked, self._row_bytes)
            return deltas, (self._links / self._linked.file).open("rb", buffering=0)
        except (BundleError, OSError) as problem:
            raise OlderSegmentRejected(self._file, str(problem)) from problem

    def _compare(self, first: int, new: NDArray[np.uint8]) -> None:
        """Compares rows of the segment from `first` on, at most as many as the buffer holds."""
        old = self._read(first, len(new))
        self._base_digest.update_at(first * self._row_bytes, old)
        lay_over_range(self._deltas, first, old)
        changed = differing_rows(old, new)
        if changed.size:
            self.changed_rows += changed.size
            if self.changed_rows > CHANGED_SHARE_MAX * self._older.rows:
                raise OlderSegmentRejected(self._file, "too many rows differ")
            if self._row_bytes > ROW_BYTES_MAX:
                raise OlderSegmentRejected(self._file, "its rows are too long for a delta")
        end = first + len(new)
        for number in range(first // RANGE_ROWS, ceil_div(end, RANGE_ROWS)):
            range_first = max(first, number * RANGE_ROWS)
            range_end = min(end, (number + 1) * RANGE_ROWS)
            low, high = np.searchsorted(changed, [range_first - first, range_end - first])
            if low < high:
                in_range = changed[low:high]
                self._held.setdefault(number, []).append(
                    _ChangedRows(first + in_range, new[in_range])
                )
                self._held_bytes += in_range.size * self._row_bytes
            self._missing_rows[number] -= range_end - range_first
            if not self._missing_rows[number] and number in self._held:
                self._write_range(self._held.pop(number))
        if self._held_bytes > HELD_BYTES_MAX:
            raise OlderSegmentRejected(self._file, "too many changed rows come out of order")

    def _read(self, first: int, count: int) -> NDArray[np.uint8]:
        """Returns rows of the older file: read, since a broken disk ends a process that maps it.

        Raises:
          OlderSegmentRejected: The file cannot be read, or was cut short.
        """
        stored = self._buffer[: count * self._row_bytes]
        size = 0
        while size < stored.size:
            position = first * self._row_bytes + size
            try:
                more = os.preadv(self._base.fileno(), [stored[size:].data], position)
            except OSError as problem:
                raise OlderSegmentRejected(self._file, str(problem)) from problem
            if not more:
                raise OlderSegmentRejected(self._file, "the older file was cut short")
            size += more
        return stored.reshape(count, self._row_bytes)

    def _write_range(self, pieces: list[_ChangedRows]) -> None:
        """Writes the changed rows of a range, all of whose rows came."""
        if self._delta is None:
            self._delta = DeltaWriter(
                self._directory / self._delta_file,
                self._row_bytes,
                self._older.rows,
                self._older.result,
                self._attempts,
            )
        rows = np.concatenate([piece.rows for piece in pieces])
        stored = np.concatenate([piece.stored for piece in pieces])
        # The same rows again, which may be many.
        pieces.clear()
        if (rows[1:] < rows[:-1]).any():
            # Rows of several lanes come one lane after the other.
            order = np.argsort(rows)
            rows = rows[order]
            stored = stored[order]
        self._delta.add(rows, stored)
        self._held_bytes -= stored.nbytes

    def _release(self) -> None:
        """Lets go of the older segment, and removes its links that have no other name."""
        self._deltas = []
        self._base.close()
        shutil.rmtree(self._links, ignore_errors=True)

    def __enter__(self) -> ComparedSegment:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is not None:
            if self._delta is not None:
                self._delta.__exit__(kind, problem, trace)
            self._release()


def _link(older_directory: Path, older: Segment, directory: Path, file: str) -> Segment:
    """Links the files of an older segment under the names that they get in the new version.

    Args:
      older_directory: The directory of the older bundle.
      older: The older segment.
      directory: Where the links are made.
      file: The bundle path of the new segment.

    Returns:
      The older segment with the names of the links.

    Raises:
      OlderSegmentRejected: A file is gone, or cannot be linked.
    """
    name = Path(file).name
    deltas = [
        delta.model_copy(update={"file": paths.delta(name, number)})
        for number, delta in enumerate(older.deltas, 1)
    ]
    linked = older.model_copy(update={"file": name, "deltas": tuple(deltas)})
    try:
        older_files = [older.file, *(delta.file for delta in older.deltas)]
        links = [linked.file, *(delta.file for delta in deltas)]
        for older_file, link in zip(older_files, links, strict=True):
            # A link to a symbolic link would lead out of the bundle.
            os.link(files.locate(older_directory, older_file), directory / link)
    except (BundleError, FileNotFoundError) as problem:
        raise OlderSegmentRejected(file, str(problem)) from problem
    except OSError as problem:
        # Not every file system has links, and some allow few of them to a file.
        link_problem = problem.strerror or str(problem)
        raise OlderSegmentRejected(file, str(problem), link_problem) from problem
    return linked
