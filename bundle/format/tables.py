"""A table's part of the manifest: its segments and their digests, where its values come from, what
converting cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bundle.arithmetic import ceil_div
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.format.fields import Count, Crc32c, Path, Positive, StrictModel

DELTAS_MAX = 10
"""The maximum number of deltas of a segment: each costs a start some time and memory."""
TableDtype = Literal["float32", "bfloat16", "float16", "int8"]
Finite = Annotated[float, Field(allow_inf_nan=False)]

_PARAMETERS = {
    "plain": (),
    "mod": ("starts",),
    "sparse_core": ("cores", "core_rows", "offset", "rotation"),
}


class Delta(StrictModel):
    """A file of rows that replace those of a segment which have the same numbers."""

    file: Path
    rows: Positive
    """The number of rows in the file."""
    bytes: Positive
    """The size of the file."""
    crc32c: Crc32c
    """crc32c of the file."""
    blocks: tuple[Crc32c, ...]
    """crc32c of each 4 MiB block of the file, in order; the last may be shorter."""
    result: Crc32c
    """crc32c of the segment's bytes with the rows of this delta and of those before it."""
    skipped_rows: Count = 0
    """The number that the segment's first row has in the file: 0, but where a shard has a part of a
    segment."""

    offset: ClassVar[int] = 0


class Segment(StrictModel):
    """A contiguous row range of a table: little-endian values, row after row, from byte `offset` of
    `file` on, but for the rows that deltas replace.
    """

    file: Path
    offset: Count = 0
    first_row: Count
    rows: Positive
    crc32c: Crc32c
    """crc32c of the segment's bytes in `file`."""
    blocks: tuple[Crc32c, ...]
    """crc32c of each 4 MiB block of the segment's bytes, in order; the last may be shorter. None of
    a linked segment: its file is one of the checkpoint's, and so is its checksum."""
    deltas: tuple[Delta, ...] = Field(default=(), max_length=DELTAS_MAX)
    """The newest last. Each is laid over the file and the deltas before it."""

    @property
    def result(self) -> int:
        """crc32c of the segment's bytes with all deltas."""
        if self.deltas:
            return self.deltas[-1].result
        return self.crc32c


class TableSource(StrictModel):
    """Where a table's values come from: a variable of the checkpoint, and which of its rows hold
    the table's.
    """

    layout: Literal["plain", "mod", "sparse_core"]
    key: str
    starts: tuple[Count, ...] | None = None
    """For `mod`: the first row of each partition in the variable."""
    cores: Positive | None = None
    """For `sparse_core`: the number of sparse cores that the variable's rows are distributed to."""
    core_rows: Positive | None = None
    """For `sparse_core`: the number of rows of the variable that each core holds."""
    offset: Count | None = None
    """For `sparse_core`: the first row of the table in each core."""
    rotation: Count | None = None
    """For `sparse_core`: the number of cores by which the table is rotated."""
    stated: bool = False
    """Whether the layout is the user's statement, which the training program did not record."""

    @model_validator(mode="after")
    def _parameters_fit(self) -> TableSource:
        required = _PARAMETERS[self.layout]
        for name in chain.from_iterable(_PARAMETERS.values()):
            is_set = getattr(self, name) is not None
            if is_set and name not in required:
                raise ValueError(f"layout {self.layout!r} has no {name!r}")
            if not is_set and name in required:
                raise ValueError(f"layout {self.layout!r} needs {name!r}")
        return self


class TableError(StrictModel):
    """How far a converted table lies from the checkpoint's own values, over every row."""

    source_dtype: str
    """The type of the checkpoint's values."""
    max_abs: Finite
    rms: Finite
    cosine_min: Finite
    cosine_mean: Finite
    """The mean cosine between a row and its converted row; 1 where both are zeros."""


class NonFiniteRows(StrictModel):
    """Rows that hold NaN or an infinity, which the user allows."""

    rows: Positive | None = None
    """The number of such rows; null: the rows of a linked table are not read."""
    first_row: Count | None = None


class Table(StrictModel):
    """Rows x dim of one dtype under one name."""

    rows: Positive
    dim: Positive
    dtype: TableDtype
    segments: tuple[Segment, ...]
    scales: tuple[Segment, ...] = ()
    """The scales of int8 rows: float32, one for each row; value = stored value * scale."""
    error: TableError | None = None
    """The error of converted rows; None: they were not converted."""
    source: TableSource
    non_finite: NonFiniteRows | None = None
    """None: all rows that were read are finite, which are all but those of a linked table."""
    unavailable: Literal["error", "unknown"] = "error"
    """What a lookup does where no process that holds its row can be reached: fail, or treat the id
    as unknown.
    """

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, without its scale."""
        return row_bytes(self.dtype, self.dim)

    @property
    def bytes(self) -> int:
        """Bytes of all rows and scales."""
        bytes_per_row = self.row_bytes
        if self.scales:
            bytes_per_row += SCALE_BYTES
        return self.rows * bytes_per_row

    def extents(self) -> Iterator[tuple[Segment | Delta, int]]:
        """Yields every segment, of rows and of scales, with the bytes that it has in its file, and
        every delta with its size.
        """
        for segments, width in ((self.segments, self.row_bytes), (self.scales, SCALE_BYTES)):
            for segment in segments:
                yield segment, segment.rows * width
                for delta in segment.deltas:
                    yield delta, delta.bytes

    @model_validator(mode="after")
    def _covered(self) -> Table:
        _check_covers(self.rows, self.segments, "segments")
        if self.dtype == "int8":
            _check_covers(self.rows, self.scales, "scales")
        elif self.scales:
            raise ValueError(f"scales belong to int8 rows, the table's are {self.dtype}")
        for extent, size in self.extents():
            if extent.blocks and len(extent.blocks) != ceil_div(size, BLOCK_BYTES):
                raise ValueError(
                    f"{extent.file!r} has {len(extent.blocks)} block checksums for {size} bytes"
                )
        for segment in (*self.segments, *self.scales):
            for delta in segment.deltas:
                # So that every message that names the file of a delta names the segment's, too.
                if not delta.file.startswith(f"{segment.file}.delta-"):
                    raise ValueError(f"{delta.file!r} is no file of a delta of {segment.file!r}")
        return self


def _check_covers(rows: int, segments: tuple[Segment, ...], what: str) -> None:
    row = 0
    for segment in segments:
        if segment.first_row != row:
            raise ValueError(
                f"{what} must follow one another: row {row} expected, {segment.file!r} begins at "
                f"{segment.first_row}"
            )
        row += segment.rows
    if row != rows:
        raise ValueError(f"{what} hold {row} rows, the table has {rows}")
