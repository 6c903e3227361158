"""The tasks of table workers: plain data, for any process on any machine that sees the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundle.arithmetic import ceil_div
from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.format.objects import StoredFile
from bundle.format.tables import Segment
from bundle.tables.row_deltas import RANGE_ROWS
from export.checkpoint.layouts import Layout, Plain, lane_ranges
from export.checkpoint.variables import NUMPY_DTYPES, ArrayStore, Slice
from object_store.locations import is_url

WORKER_BYTES = 128 << 20
"""The memory that a table worker uses before it reads anything: the interpreter and its libraries
(80 to 105 MiB, measured).
"""
DECODER_BYTES = 40 << 20
"""The memory that reading an array adds: tensorstore, or h5py, and what they allocate besides the
chunks.
"""
STORE_BYTES = 160 << 20
"""The memory that reading from a store adds: its library, and what is fetched ahead (s3fs,
measured: 107 MiB).
"""
_BLOCK_BYTES = 1 << 20
_LANES_BLOCK_BYTES = 8 << 20
_REMOTE_BLOCK_BYTES = 64 << 20
"""Bytes read at a time: of one lane, as many as stay in the cache; of many lanes, some rows of each
lane; of many lanes in a store, more, as each request takes time.
"""
STRIPE_BYTES = 128 << 10
"""Bytes written at a time of rows that lie in many lanes: fewer would be many small writes, more
would leave the cache.
"""
HELD_BYTES_MAX = 128 << 20
"""The maximum number of bytes of changed rows that wait for the other rows of their range."""
CHANGED_SHARE_MAX = 0.25
"""The largest share of changed rows in a delta: a reader looks for each row in it."""
_RECORD_BYTES = 256
"""The maximum number of bytes of a range's record in a delta, but for its rows."""
_ROW_NUMBER_BYTES = 2
_CHANGED_ROW_BYTES = 8
"""The memory that a row of a delta takes while it is compared: its number."""
_CONVERSION_BYTES = 14 << 20
_CONVERSION_ROWS = 16
"""The memory that a conversion uses: copies of a piece of rows, or _CONVERSION_ROWS copies of one
row as float64 if a row is larger than a piece.
"""


def delta_bytes_max(rows: int, row_bytes: int) -> int:
    """Returns the maximum size of the delta that is written for a segment.

    Args:
      rows: The number of rows of the segment.
      row_bytes: The number of bytes of a row.
    """
    changed_rows = int(rows * CHANGED_SHARE_MAX)
    # The first and the last record are about the file.
    records = ceil_div(rows, RANGE_ROWS) + 2
    return changed_rows * (row_bytes + _ROW_NUMBER_BYTES) + records * _RECORD_BYTES


@dataclass(frozen=True, slots=True)
class OlderSegment:
    """A segment of an older version.

    Attributes:
      directory: The directory of the older bundle.
      segment: The segment, whose files are in that directory.
    """

    directory: str
    segment: Segment


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment of an older version in a store.

    Attributes:
      model: The URL of the directory of the model.
      segment: The segment.
      files: Which objects its file and those of its deltas are, by their bundle paths.
    """

    model: str
    segment: Segment
    files: Mapping[str, StoredFile]

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True, slots=True)
class TableTask:
    """One segment to be written.

    Attributes:
      table, dim: The name and the width of the table.
      key, dtype: The key and the dtype of the variable that holds the table.
      first_row, rows: The rows of the segment.
      layout: Which row of the variable holds row r.
      stored: Rows and columns of the variable.
      slices: The slices of the variable that hold rows of the segment; () if it lies in an array.
      array: The array of the variable; None if it has slices.
      written_dtype: The dtype of the rows in the segment.
      directory: The directory where bundle paths begin.
      file: The bundle path of the segment.
      block_bytes: The number of stored bytes read at a time, unless they are written as they are.
      scales: The bundle path of the scales of int8 rows; None if the rows have another dtype.
      attempts: The directory of the run, where the segment lies until it is whole; None: beside
        `file`.
      offset: The first byte of the segment in `file`, which exists and which other tasks fill, too;
        None: the segment is the file.
      value_dtype: The dtype of the values in rows of bytes (`dtype` int8); "" if it is `dtype`.
      older: An older version's segment of the same rows, of which the task links what did not
        change; None if there is none.
      older_scales: The scales beside that segment.
    """

    table: str
    dim: int
    key: str
    dtype: str
    first_row: int
    rows: int
    layout: Layout
    stored: tuple[int, int]
    slices: tuple[Slice, ...]
    array: ArrayStore | None
    written_dtype: str
    directory: str
    file: str
    block_bytes: int
    scales: str | None = None
    attempts: str | None = None
    offset: int | None = None
    value_dtype: str = ""
    older: OlderSegment | StoredSegment | None = None
    older_scales: OlderSegment | StoredSegment | None = None

    @property
    def step(self) -> str:
        """The task's name, the same in every run of the same plan."""
        if self.offset is None:
            return self.file
        return f"{self.file} at {self.offset}"

    @property
    def itemsize(self) -> int:
        """Bytes of a stored value."""
        return NUMPY_DTYPES[self.dtype].itemsize

    @property
    def values_per_row(self) -> int:
        """Values of a row, which has `dim` of them unless it is copied as bytes."""
        if not self.value_dtype:
            return self.dim
        return self.dim // NUMPY_DTYPES[self.value_dtype].itemsize

    @property
    def stored_row_bytes(self) -> int:
        """Bytes of a row of the variable."""
        return self.stored[1] * self.itemsize

    @property
    def converted(self) -> bool:
        """Whether the values of the rows are converted."""
        return self.written_dtype != self.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the segment."""
        return row_bytes(self.written_dtype, self.dim)

    @property
    def bytes(self) -> int:
        """Bytes of the segment, and of its scales."""
        return self.rows * self.row_bytes + self.scales_bytes

    @property
    def scales_bytes(self) -> int:
        """Bytes of the scales of int8 rows; 0 of other rows."""
        if self.scales is None:
            return 0
        return self.rows * SCALE_BYTES

    @property
    def fetched_bytes(self) -> int:
        """Bytes of older segments that are fetched from a store, and lie on the local disk while
        rows are compared with them.
        """
        older_segments = (self.older, self.older_scales)
        return sum(older.bytes for older in older_segments if isinstance(older, StoredSegment))

    @property
    def staged_bytes(self) -> int:
        """An upper bound of the bytes of the files that the task writes or links, but for those of
        older versions on the same disk.
        """
        if not self.fetched_bytes:
            return self.bytes
        delta_bytes = delta_bytes_max(self.rows, self.row_bytes)
        if self.scales is not None:
            delta_bytes += delta_bytes_max(self.rows, SCALE_BYTES)
        return max(self.bytes, self.fetched_bytes + delta_bytes)

    @property
    def memory_bytes(self) -> int:
        """An upper bound of the memory that the task uses."""
        decoding_bytes = 0
        if self.array is not None:
            decoding_bytes = DECODER_BYTES + self.array.memory_bytes
            if is_url(self.array.file):
                decoding_bytes += STORE_BYTES
        conversion_bytes = 0
        if self.converted:
            conversion_bytes = max(_CONVERSION_BYTES, _CONVERSION_ROWS * self.dim * 8)
        compared_bytes = 0
        for older, width in ((self.older, self.row_bytes), (self.older_scales, SCALE_BYTES)):
            if older is not None:
                # The rows of a range are put in order and copied when they are written.
                range_bytes = min(HELD_BYTES_MAX, width * min(RANGE_ROWS, self.rows))
                held_bytes = range_bytes
                if self.layout.lanes > 1:
                    held_bytes = min(HELD_BYTES_MAX, width * self.rows)
                delta_rows = sum(delta.rows for delta in older.segment.deltas)
                compared_bytes += held_bytes + 2 * range_bytes + delta_rows * _CHANGED_ROW_BYTES
        if self.fetched_bytes:
            compared_bytes += STORE_BYTES
        # The block that is read, and the same rows in the order of the table.
        blocks = 2 * max(self.block_bytes, self.stored_row_bytes)
        return (
            _base_bytes(self.slices) + blocks + decoding_bytes + conversion_bytes + compared_bytes
        )

    @property
    def as_stored(self) -> bool:
        """Whether the segment holds the bytes of the variable in their order."""
        return isinstance(self.layout, Plain) and self.stored[1] == self.dim and not self.converted


@dataclass(frozen=True, slots=True)
class SumTask:
    """Rows of a variable to be summed that no exported table holds: padding, and tables of a stack
    that are left out.

    Attributes:
      step: The name of the task.
      key: The key of the variable.
      columns, itemsize: The number of columns of the variable, and the size of a value in bytes.
      ranges: Ranges of stored rows [first, end), ascending.
      slices: The slices that hold the ranges.
      block_bytes: The number of bytes read at a time.
    """

    step: str
    key: str
    columns: int
    itemsize: int
    ranges: tuple[tuple[int, int], ...]
    slices: tuple[Slice, ...]
    block_bytes: int

    @property
    def stored_row_bytes(self) -> int:
        """Bytes of a row of the variable."""
        return self.columns * self.itemsize

    @property
    def memory_bytes(self) -> int:
        """An upper bound of the memory that the task uses."""
        return _base_bytes(self.slices) + 2 * max(self.block_bytes, self.stored_row_bytes)

    @property
    def bytes(self) -> int:
        """Bytes to be read."""
        return sum(end - first for first, end in self.ranges) * self.stored_row_bytes


def block_bytes(lanes: int, budget_bytes: int, *, remote: bool = False) -> int:
    """Returns the stored bytes that a task reads at a time; it holds up to twice as many.

    Args:
      lanes: The number of lanes of the layout.
      budget_bytes: The memory that a worker may use beyond its libraries.
      remote: Whether the bytes come from a store.
    """
    if lanes == 1:
        bytes_at_once = _BLOCK_BYTES
    elif remote:
        bytes_at_once = _REMOTE_BLOCK_BYTES
    else:
        # Rows of few lanes stay in the cache; of many lanes, each would be read a few rows at a
        # time.
        bytes_at_once = min(_LANES_BLOCK_BYTES, lanes * STRIPE_BYTES)
    return min(bytes_at_once, max(1, budget_bytes // 2))


def _base_bytes(slices: Sequence[Slice]) -> int:
    """Returns the memory that a worker uses whichever task it runs."""
    if any(is_url(part.file) for part in slices):
        return WORKER_BYTES + STORE_BYTES
    return WORKER_BYTES


def stored_range(layout: Layout, first: int, rows: int) -> tuple[int, int]:
    """Returns the smallest range [first, end) of stored rows that holds rows [first, first + rows)
    of a table.
    """
    firsts, ends = zip(*lane_ranges(layout, first, rows), strict=True)
    return min(firsts), max(ends)
