"""The tasks of table workers: plain data, for any process on any machine that sees the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bundle.format.dtypes import SCALE_BYTES, row_bytes
from export.checkpoint.layouts import Layout, Plain, lane_ranges
from export.checkpoint.variables import NUMPY_DTYPES, ArrayStore, Slice
from object_store.locations import is_url

WORKER_BYTES = 128 << 20
"""What a table worker holds before it reads anything: the interpreter and its libraries (80 to 105
MiB, measured).
"""
DECODER_BYTES = 40 << 20
"""What reading an array adds: tensorstore, or h5py, and what they allocate besides the chunks."""
STORE_BYTES = 160 << 20
"""What reading from a store adds: its library, and what is fetched ahead (s3fs, measured: 107 MiB).
"""
_BLOCK_BYTES = 1 << 20
_LANES_BLOCK_BYTES = 8 << 20
_REMOTE_BLOCK_BYTES = 64 << 20
"""Read at a time of one lane, which stay in the cache; of many lanes, some rows of each; of these
in a store.
"""
STRIPE_BYTES = 128 << 10
"""Written at a time of rows that lie in many lanes: fewer would be many small writes, more would
leave the cache.
"""
_CONVERSION_BYTES = 14 << 20
_CONVERSION_ROWS = 16
"""What converting holds: copies of some rows; or so many copies of one row, as float64."""


@dataclass(frozen=True, slots=True)
class TableTask:
    """One segment to be written.

    Attributes:
      table, dim: of the table.
      key, dtype: of the variable that holds it.
      first_row, rows: the rows of the segment.
      layout: which row of the variable holds row r.
      stored: rows and columns of the variable.
      slices: those of the variable that hold rows of the segment; () if it lies in an array.
      array: where the variable lies if it has no slices.
      written_dtype: of the rows in the segment.
      directory: where bundle paths begin.
      file: bundle path of the segment.
      scales: bundle path of the scales of its int8 rows; None of other rows.
      block_bytes: stored bytes read at a time, where they are not written as they are.
      attempts: directory of the run, where the segment lies until it is whole; None: beside `file`.
      offset: first byte of the segment in `file`, which is there and which other tasks fill, too;
        None: the segment is the file.
      value_dtype: of the values that rows of bytes (`dtype` int8) consist of; "" if `dtype` is.
      older: path of an older version's segment of the same rows, which is linked if its bytes are
        those that the task produces; None: there is none.
      older_scales: path of the scales beside it.
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
    older: str | None = None
    older_scales: str | None = None

    @property
    def step(self) -> str:
        """Its name, the same in every run of the same plan."""
        return self.file if self.offset is None else f"{self.file} at {self.offset}"

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
        """Whether the rows' values change on their way."""
        return self.written_dtype != self.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the segment, and of its scales."""
        return self.rows * row_bytes(self.written_dtype, self.dim) + self.scales_bytes

    @property
    def scales_bytes(self) -> int:
        """Bytes of the scales of int8 rows; 0 of other rows."""
        return self.rows * SCALE_BYTES if self.scales else 0

    @property
    def memory_bytes(self) -> int:
        """The most memory that the task holds, an upper bound."""
        decoded = 0
        if self.array is not None:
            decoded = DECODER_BYTES + self.array.memory_bytes
            decoded += STORE_BYTES if is_url(self.array.file) else 0
        copies = max(_CONVERSION_BYTES, _CONVERSION_ROWS * self.dim * 8) if self.converted else 0
        blocks = 2 * max(self.block_bytes, self.stored_row_bytes)
        return _held(self.slices) + blocks + decoded + copies

    @property
    def as_stored(self) -> bool:
        """Whether the segment holds the bytes of the variable in their order."""
        return isinstance(self.layout, Plain) and self.stored[1] == self.dim and not self.converted


@dataclass(frozen=True, slots=True)
class RestTask:
    """Rows of a variable to be summed that no exported table holds: padding, and tables of a stack
    that are left out.

    Attributes:
      step: name of the task.
      key: of the variable.
      columns, itemsize: of the variable.
      ranges: stored rows [first, end), ascending.
      slices: those that hold them.
      block_bytes: bytes held at a time.
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
        """The most memory that the task holds, an upper bound."""
        return _held(self.slices) + 2 * max(self.block_bytes, self.stored_row_bytes)

    @property
    def bytes(self) -> int:
        """Bytes to be read."""
        return sum(end - first for first, end in self.ranges) * self.stored_row_bytes


def block_bytes(lanes: int, budget_bytes: int, *, remote: bool = False) -> int:
    """Returns the stored bytes that a task reads at a time; it holds up to twice as many.

    Args:
      lanes: of the layout.
      budget_bytes: memory that a worker may hold beyond its libraries.
      remote: whether they come from a store.
    """
    if lanes == 1:
        wanted = _BLOCK_BYTES
    elif remote:
        wanted = _REMOTE_BLOCK_BYTES
    else:
        # Rows of few lanes stay in the cache; of many lanes, each would be read a few rows at a
        # time.
        wanted = min(_LANES_BLOCK_BYTES, lanes * STRIPE_BYTES)
    return min(wanted, max(1, budget_bytes // 2))


def _held(slices: Sequence[Slice]) -> int:
    """Returns what a worker holds whatever it does."""
    return WORKER_BYTES + (STORE_BYTES if any(is_url(part.file) for part in slices) else 0)


def stored_range(layout: Layout, first: int, rows: int) -> tuple[int, int]:
    """Returns the least range [first, end) of stored rows that holds rows [first, first + rows) of
    a table.
    """
    firsts, ends = zip(*lane_ranges(layout, first, rows), strict=True)
    return min(firsts), max(ends)
