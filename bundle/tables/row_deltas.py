"""Deltas: files of the rows of a segment that have changed since the version before.

    magic      8 bytes
    record 0   JSON: format, row_bytes, rows of the segment, base (crc32c of the segment's bytes
               that the delta is laid over)
    record n   the changed rows of one range of 65,536 rows, ascending
    last       JSON: rows in the file, result (crc32c of the segment's bytes with them)

`row_records.py` says how records are framed, and how they hold rows. There is one at most for each
range, in any order. The last one shows that the file is whole.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import DigestMismatch
from bundle.format.checksums import Digest, crc32c
from bundle.format.tables import Delta, Segment
from bundle.storage import files
from bundle.tables import row_records
from bundle.tables.row_records import Frame, RowRecord, Unsound, frame_at, framed
from bundle.tables.segment_writer import SegmentWriter

MAGIC = b"rowcastD"
_FORMAT = 1
RANGE_ROWS = 65_536
"""The number of rows whose changes share a record: their numbers in it take 16 bits."""
ROW_BYTES_MAX = 0xFFFF0000 // RANGE_ROWS
"""The maximum number of bytes of a row, all of whose range fits a record."""
_RANK_WORDS = 8
"""The number of words of bits that share a rank: a cache line of them."""

Bytes: TypeAlias = NDArray[np.uint8]
Rows: TypeAlias = NDArray[np.int64]


class DeltaWriter:
    """Writes one delta; the file appears under its name once it is whole.

    Used as a context: left by an exception, it removes the unfinished file.
    """

    def __init__(
        self, path: Path, row_bytes: int, rows: int, base: int, attempts: Path | None = None
    ) -> None:
        """Begins a file.

        Args:
          path: The path of the file.
          row_bytes: The number of bytes of a row.
          rows: The number of rows of the segment.
          base: The crc32c of the segment's bytes that the delta is laid over.
          attempts: The directory on the same disk where the file lies until it is whole; None:
            beside `path`.

        Raises:
          OSError: The file cannot be written.
        """
        self.rows = 0
        """The number of rows that were added."""
        self._file = SegmentWriter(path, attempts)
        self._record_count = 0
        self._file.write(MAGIC)
        facts = {"format": _FORMAT, "row_bytes": row_bytes, "rows": rows, "base": base}
        self._append(orjson.dumps(facts))

    def add(self, rows: Rows, stored: Bytes) -> None:
        """Adds changed rows of one range of 65,536, of which none were added before.

        Args:
          rows: [n] int64, the numbers of the rows in the segment, ascending.
          stored: [n, row_bytes] uint8, the rows as they are stored.

        Raises:
          OSError: The disk is full or broken.
        """
        if rows.size:
            self._append(row_records.encode(rows, stored))
            self.rows += rows.size

    def close(self, result: int) -> Digest:
        """Ends the file, gives it its name and returns its digest.

        Args:
          result: The crc32c of the segment's bytes with the rows of this delta.

        Raises:
          OSError: The disk is full or broken.
        """
        self._append(orjson.dumps({"rows": self.rows, "result": result}))
        return self._file.close()

    def _append(self, payload: bytes) -> None:
        for part in framed(self._record_count, payload, self._file.bytes):
            self._file.write(part)
        self._record_count += 1

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if kind is not None:
            self._file.__exit__(kind, problem, trace)


class RangeRows(NamedTuple):
    """The changed rows of one range in a delta.

    Attributes:
      record: Their numbers in the segment, ascending, which are mapped, too.
      stored: [n, row_bytes] uint8, mapped.
    """

    record: RowRecord
    stored: Bytes

    @property
    def rows(self) -> Rows:
        """[n] int64, the numbers of the rows in the segment, ascending."""
        return self.record.rows


class MappedDelta:
    """A delta as it is mapped. Its frames are checked when it is opened, its rows by `check_rows`.

    Attributes:
      ranges: The changed rows by the number of their range.
      data: The mapped file.
    """

    def __init__(
        self, root: Path, segment: Segment, delta: Delta, base: int, row_bytes: int
    ) -> None:
        """Maps a delta.

        Args:
          root: The directory of the bundle.
          segment: The segment, as its file has it.
          delta: The delta.
          base: The crc32c of the segment's bytes that the delta has to be laid over.
          row_bytes: The number of bytes of a row.

        Raises:
          UnsafePath: The file lies outside the bundle.
          DigestMismatch: The file is missing, cut short or damaged, or belongs to another segment;
            names both files.
        """
        self.ranges: dict[int, RangeRows] = {}
        self._delta = delta
        self._row_bytes = row_bytes
        self._frames: list[Frame] = []
        try:
            size = files.size(root, delta.file)
        except DigestMismatch as problem:
            raise self._damaged(segment, "it is missing, or no regular file") from problem
        if size != delta.bytes:
            raise self._damaged(segment, f"it has {size} bytes; {delta.bytes} were expected")
        with files.locate(root, delta.file).open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            self._mapped.madvise(mmap.MADV_RANDOM)  # read-ahead around random rows evicts others
        self.data: Bytes = np.frombuffer(self._mapped, np.uint8)
        try:
            self._read(segment, base)
        except (Unsound, struct.error, ValueError, KeyError, TypeError) as problem:
            raise self._damaged(segment, str(problem) or "a checksum does not match") from problem

    def check_rows(self) -> None:
        """Compares every record with its checksum.

        Raises:
          DigestMismatch: One differs.
        """
        for frame in self._frames:
            if crc32c(self.data[frame.begin : frame.end]) != frame.checksum:
                raise DigestMismatch(
                    f"delta {self._delta.file!r} differs from its checksum at byte {frame.begin}; "
                    "copy the bundle again"
                )

    def release(self) -> None:
        """Lets go of the pages that were read; later reads bring them back."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def _read(self, segment: Segment, base: int) -> None:
        """Reads all frames.

        Raises:
          Unsound, struct.error, ValueError, KeyError, TypeError: The file is damaged.
          DigestMismatch: It belongs to another segment.
        """
        mapped = self._mapped
        if mapped[: len(MAGIC)] != MAGIC:
            raise ValueError(f"it begins with {mapped[: len(MAGIC)]!r}")
        end = len(MAGIC)
        while end < len(mapped):
            frame = frame_at(mapped, end)
            if frame is None or frame.end > len(mapped) or frame.number != len(self._frames):
                raise ValueError(f"the record at byte {end} is cut short")
            self._frames.append(frame)
            end = frame.end
        header, *records, last = self._frames
        self._check_header(segment, base, self._json(header))
        rows = 0
        for frame in records:
            rows += self._read_range(frame, segment)
        facts = self._json(last)
        expected = {"rows": self._delta.rows, "result": self._delta.result}
        if facts != expected or rows != self._delta.rows:
            raise ValueError(f"it ends with {facts} behind {rows} rows; {expected} was expected")

    def _read_range(self, frame: Frame, segment: Segment) -> int:
        """Reads the changed rows of a range; returns their number."""
        payload = memoryview(self._mapped)[frame.begin : frame.end]
        record = row_records.decode(payload)
        rows = record.rows
        if record.row_bytes != self._row_bytes or not rows.size or rows[0] < 0:
            raise ValueError(f"a record has {rows.size} rows of {record.row_bytes} bytes")
        number = int(rows[0]) // RANGE_ROWS
        end = self._delta.skipped_rows + segment.rows
        is_ascending = bool((rows[1:] > rows[:-1]).all())
        in_range = int(rows[-1]) // RANGE_ROWS == number and number not in self.ranges
        if not is_ascending or not in_range:
            raise ValueError(f"rows {rows[0]} to {rows[-1]} of a segment of {end} are no range")
        stored = self.data[frame.begin + record.begin : frame.end]
        self.ranges[number] = RangeRows(record, stored.reshape(-1, self._row_bytes))
        return rows.size

    def _check_header(self, segment: Segment, base: int, facts: Mapping[str, object]) -> None:
        """Checks that the delta belongs to a segment.

        Raises:
          DigestMismatch: It does not.
          KeyError, ValueError: The header is another one.
        """
        if facts["format"] != _FORMAT:
            raise ValueError(f"it has format {facts['format']!r}; {_FORMAT} was expected")
        if facts["row_bytes"] != self._row_bytes or facts["base"] != base:
            raise DigestMismatch(
                f"delta {self._delta.file!r} is laid over rows of {facts['row_bytes']} bytes with "
                f"crc32c {facts['base']}; segment {segment.file!r} has rows of {self._row_bytes} "
                f"bytes and, with the deltas before, crc32c {base}: copy the bundle again"
            )

    def _json(self, frame: Frame) -> dict[str, object]:
        payload = self._mapped[frame.begin : frame.end]
        if crc32c(payload) != frame.checksum:
            raise Unsound
        facts: dict[str, object] = orjson.loads(payload)
        return facts

    def _damaged(self, segment: Segment, reason: str) -> DigestMismatch:
        return DigestMismatch(
            f"delta {self._delta.file!r} of segment {segment.file!r} is damaged: {reason}; copy "
            "the bundle again"
        )


def open_deltas(root: Path, segment: Segment, row_bytes: int) -> list[MappedDelta]:
    """Maps the deltas of a segment, the newest last; arguments and errors as of `MappedDelta`."""
    base = segment.crc32c
    mapped = []
    for delta in segment.deltas:
        mapped.append(MappedDelta(root, segment, delta, base, row_bytes))
        base = delta.result
    return mapped


class ChangedRanges(NamedTuple):
    """Where the rows of a segment lie that its deltas have: found without a search.

    A row is number `row` of the deltas, counted from the first row of their segment.

    Attributes:
      skipped_rows: The number of the first row that is read.
      bits: [w] uint64, a bit for each row, whether a delta has it, from the lowest on.
      ranks: [ceil(w / 8)] uint32, the number of such rows before each 512.
      slots: [c] uint32, for each such row in their order: the number of the newest delta that has
        it, times 65,536, and its position among the rows of its range there.
      frames: [deltas, ranges] uint64, the address of the first row of each range in each delta.
      row_bytes: The number of bytes of a row.
      deltas: What the addresses lie in.
    """

    skipped_rows: int
    bits: NDArray[np.uint64]
    ranks: NDArray[np.uint32]
    slots: NDArray[np.uint32]
    frames: NDArray[np.uint64]
    row_bytes: int
    deltas: tuple[MappedDelta, ...]

    @classmethod
    def of(cls, segment: Segment, deltas: Sequence[MappedDelta], row_bytes: int) -> ChangedRanges:
        """Merges the deltas of a segment.

        Args:
          segment: The segment.
          deltas: Its deltas, the newest last; at least one.
          row_bytes: The number of bytes of a row.
        """
        skipped_rows = segment.deltas[0].skipped_rows
        range_count = ceil_div(skipped_rows + segment.rows, RANGE_ROWS)
        words = RANGE_ROWS // 64
        bits = np.zeros(range_count * words, np.uint64)
        frames = np.zeros((len(deltas), range_count), np.uint64)
        slots = [np.empty(0, np.uint32)]
        newest = np.empty(RANGE_ROWS, np.uint32)
        for number in range(range_count):
            is_changed = np.zeros(RANGE_ROWS, np.bool_)
            for position, delta in enumerate(deltas):
                changed = delta.ranges.get(number)
                if changed is None:
                    continue
                rows = changed.rows - number * RANGE_ROWS
                is_changed[rows] = True
                newest[rows] = position * RANGE_ROWS + np.arange(rows.size, dtype=np.uint32)
                frames[position, number] = changed.stored.ctypes.data
            if is_changed.any():
                packed = np.packbits(is_changed, bitorder="little").view(np.uint64)
                bits[number * words : (number + 1) * words] = packed
                slots.append(newest[is_changed])
        counts = np.bitwise_count(bits).reshape(-1, _RANK_WORDS).sum(axis=1, dtype=np.uint32)
        ranks = np.cumsum(counts, dtype=np.uint32) - counts
        all_slots = np.concatenate(slots)
        # The numbers of the rows are merged, and what lies around them was never needed.
        for delta in deltas:
            delta.release()
        return cls(skipped_rows, bits, ranks, all_slots, frames, row_bytes, tuple(deltas))

    def lay_over(self, rows: Rows, stored: Bytes) -> None:
        """Replaces rows that a delta has.

        Args:
          rows: [n] int64, rows of the segment, each one of it.
          stored: [n, row_bytes] uint8, what the segment's file has, which is written into.
        """
        numbers = rows + self.skipped_rows
        words = numbers >> 6
        masks = np.uint64(1) << (numbers & 63).view(np.uint64)
        (positions,) = (self.bits[words] & masks).nonzero()
        if not positions.size:
            return
        slots = self.slots[self._ranks_of(numbers[positions], masks[positions])]
        ranges = numbers[positions] // RANGE_ROWS
        delta_numbers = slots // RANGE_ROWS
        offsets_in_range = (slots % RANGE_ROWS).astype(np.int64) * self.row_bytes
        for number in np.unique(delta_numbers).tolist():
            (of_delta,) = (delta_numbers == number).nonzero()
            data = self.deltas[number].data
            addresses = self.frames[number, ranges[of_delta]]
            begins = (addresses - np.uint64(data.ctypes.data)).view(np.int64)
            # Of this view, an element begins at each byte.
            count = data.size - self.row_bytes + 1
            elements: NDArray[np.void] = np.ndarray(count, f"V{self.row_bytes}", data, strides=(1,))
            changed = elements[begins + offsets_in_range[of_delta]]
            stored[positions[of_delta]] = changed.view(np.uint8).reshape(-1, self.row_bytes)

    def lay_over_range(self, first: int, stored: Bytes) -> None:
        """Replaces rows of a range that deltas have; arguments as of `lay_over`.

        Args:
          first: The first row of the range in the segment.
          stored: [n, row_bytes] uint8, the rows from it on.
        """
        lay_over_range(self.deltas, self.skipped_rows + first, stored)

    def _ranks_of(self, numbers: Rows, masks: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Returns how many changed rows are before each one.

        Args:
          numbers: [n] int64, rows that deltas have.
          masks: [n] uint64, the bit of each in its word.
        """
        words = numbers >> 6
        in_word = np.bitwise_count(self.bits[words] & (masks - np.uint64(1)))
        blocks = words // _RANK_WORDS
        counts = np.bitwise_count(self.bits.reshape(-1, _RANK_WORDS)[blocks])
        counts[np.arange(_RANK_WORDS) >= (words % _RANK_WORDS)[:, np.newaxis]] = 0
        ranks: NDArray[np.intp] = self.ranks[blocks] + counts.sum(axis=1, dtype=np.intp) + in_word
        return ranks


def merged_bytes(segment: Segment) -> int:
    """Returns an upper bound of the memory that the merged deltas of a segment take.

    Args:
      segment: The segment, as its file has it.
    """
    if not segment.deltas:
        return 0
    range_count = ceil_div(segment.rows, RANGE_ROWS)
    words = range_count * RANGE_ROWS // 64
    bits_bytes = 8 * words
    ranks_bytes = 4 * words // _RANK_WORDS
    changed_rows = min(segment.rows, sum(delta.rows for delta in segment.deltas))
    # While they are joined, the slots of all ranges are there twice.
    slots_bytes = 2 * 4 * changed_rows
    frames_bytes = 8 * len(segment.deltas) * range_count
    return bits_bytes + ranks_bytes + slots_bytes + frames_bytes


def lay_over_range(deltas: Sequence[MappedDelta], first: int, stored: Bytes) -> None:
    """Replaces rows of a range that deltas have.

    Args:
      deltas: The deltas of a segment, the newest last.
      first: The number that the first row of the range has in them.
      stored: [n, row_bytes] uint8, the rows from it on, which are written into.
    """
    end = first + len(stored)
    for number in range(first // RANGE_ROWS, ceil_div(end, RANGE_ROWS)):
        for delta in deltas:
            changed = delta.ranges.get(number)
            if changed is not None:
                rows = changed.rows
                begin, stop = rows.searchsorted([first, end])
                stored[rows[begin:stop] - first] = changed.stored[begin:stop]


def differing_rows(old: Bytes, new: Bytes) -> NDArray[np.intp]:
    """Returns which rows differ, ascending.

    Args:
      old, new: [n, row_bytes] uint8, in C order.
    """
    row_bytes = new.shape[1]
    # Words of the largest size that divides a row: fewer comparisons.
    size = next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    words = np.dtype(f"u{size}")
    (positions,) = (old.reshape(-1).view(words) != new.reshape(-1).view(words)).nonzero()
    rows = positions // (row_bytes // size)
    is_first = np.append(True, rows[1:] != rows[:-1])
    distinct_rows: NDArray[np.intp] = rows[is_first[: rows.size]]
    return distinct_rows
