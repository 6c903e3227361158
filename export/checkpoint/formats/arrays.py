"""Rows of a variable that is kept in chunks, mostly compressed: Orbax' zarr arrays, HDF5 datasets in chunks.

A chunk cannot be entered in its middle, so rows are read in ascending order, each chunk decoded once. A chunk that is
too large to be held is decoded piece by piece (`chunk_pieces`).
"""

from __future__ import annotations

import json
import math
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import numpy as np

from export.checkpoint.datafiles import check_unchanged
from export.checkpoint.formats.chunk_pieces import ChunkPieces, piece_format
from export.checkpoint.formats.hdf5 import open_hdf5
from export.checkpoint.variables import ArrayStore
from export.errors import CheckpointError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HDF5 = "hdf5"
BAND_BYTES_MAX = 16 << 20
"""A band of chunks, side by side, is decoded as a whole up to this size."""
BLOCK_BYTES = 4 << 20
"""Decoded bytes held at a time of a larger chunk."""


def load_tensorstore(what: str) -> Any:
    """Imports tensorstore.

    Args:
      what: is to be read with it.
    Raises:
      CheckpointError: it is not installed; says how.
    """
    try:
        import tensorstore
    except ImportError as problem:
        raise CheckpointError(
            f"{what} is read with tensorstore, which is missing: pip install 'rowcast[orbax]'"
        ) from problem
    return tensorstore


def held_bytes(
    shape: Sequence[int], chunk: Sequence[int], itemsize: int, *, in_pieces: bool
) -> int:
    """Returns the most bytes that are held to read rows of an array.

    Args:
      shape: of the array.
      chunk: extent of what is decoded as a whole.
      itemsize: bytes of a value.
      in_pieces: whether a chunk can be decoded piece by piece.
    """
    band = min(chunk[0], shape[0]) * math.prod(tuple(shape[1:])) * itemsize if shape else itemsize
    held = 2 * BLOCK_BYTES if in_pieces and band > BAND_BYTES_MAX else band
    return 3 * held  # as stored, decoded, and put together


class ArrayRows:
    """Rows of a chunked variable. A row behind the last that was read costs only what lies between the two."""

    def __init__(self, store: ArrayStore) -> None:
        """Opens the array.

        Raises:
          CheckpointError: it changed, cannot be opened, or a library is missing that it needs.
        """
        self._stamps = {} if store.stamp is None else {store.file: store.stamp}
        check_unchanged(self._stamps)
        what = json.loads(store.spec)
        self._array = _Dataset(what) if what["driver"] == HDF5 else _Zarr(what)
        self._blocks: Iterator[Bytes] = iter(())
        self._first, self._block = -1, np.empty((0, 0), np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._blocks, self._first, self._block = iter(()), -1, self._block[:0]
        if error is None:
            check_unchanged(self._stamps)

    def read_into(self, first: int, rows: Bytes) -> None:
        """Fills [n, bytes of a row] with stored rows from `first` on.

        Raises:
          CheckpointError: a chunk is damaged or cannot be read.
        """
        done = 0
        while done < len(rows):
            self._reach(first + done)
            here = self._block[first + done - self._first :][: len(rows) - done]
            rows[done : done + len(here)] = here
            done += len(here)

    def read_each(self, ranges: Iterable[tuple[int, int]], rows: Bytes) -> None:
        """Fills [n, bytes of a stored row] with ranges of stored rows, one behind the other: first row and how many."""
        at = 0
        for first, count in ranges:
            self.read_into(first, rows[at : at + count])
            at += count

    def sums(self) -> tuple[()]:
        """Returns nothing: the storage tells no checksum that could be held against values."""
        return ()

    def damaged(self) -> None:
        """Returns nothing: a chunk that cannot be decoded is refused when it is read."""

    def _reach(self, row: int) -> None:
        """Makes the block the one that holds a row; goes on from the last one, unless whole chunks lie between."""
        end = self._first + len(self._block)
        if not self._first <= row < end and not row - row % self._array.band_rows <= end <= row:
            self._blocks, self._first, self._block = self._decoded(row), row, self._block[:0]
        while row >= self._first + len(self._block):
            self._first += len(self._block)
            block = next(self._blocks, None)
            if block is None:
                raise CheckpointError(
                    f"an array has no row {row}: the checkpoint changed; read one that is complete"
                )
            self._block = block

    def _decoded(self, first: int) -> Iterator[Bytes]:
        """Yields the rows from the one given on, to the last."""
        array = self._array
        while first < array.rows:
            chunk, low = divmod(first, array.band_rows)
            rows = min(array.rows - first, array.band_rows - low)
            yield from array.blocks(chunk, low, low + rows)
            first += rows


class _Zarr:
    def __init__(self, what: dict[str, Any]) -> None:
        tensorstore = load_tensorstore(f"array {what['kvstore']['path']!r}")
        self._what = what
        limits = {"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": 1}}
        with _told(what):
            self._array = tensorstore.open(
                what, read=True, open=True, context=tensorstore.Context(limits)
            ).result()
            metadata = self._array.spec().to_json()["metadata"]
        shape, chunk = self._array.shape or (1,), self._array.chunk_layout.read_chunk.shape or (1,)
        self.rows, self.band_rows = shape[0], max(1, chunk[0])
        self._row_bytes = math.prod(shape[1:]) * self._array.dtype.numpy_dtype.itemsize
        form = piece_format(metadata)
        large = form is not None and self.band_rows * self._row_bytes > BAND_BYTES_MAX
        self._pieces = (
            ChunkPieces(self._array.kvstore, form, self._row_bytes)
            if form is not None and large
            else None
        )

    def blocks(self, chunk: int, low: int, high: int) -> Iterator[Bytes]:
        first = chunk * self.band_rows
        with _told(self._what):
            pieces = (
                None if self._pieces is None else self._pieces.blocks(chunk, low, high, BLOCK_BYTES)
            )
            if pieces is not None:
                yield from pieces
                return
            step = (
                high - low if self._pieces is None else max(1, BLOCK_BYTES // self._row_bytes)
            )  # not stored: filled
            for row in range(first + low, first + high, step):
                part = (
                    self._array[row : min(row + step, first + high)]
                    if self._array.rank
                    else self._array
                )
                yield _as_bytes(part.read().result(), self._row_bytes)


class _Dataset:
    def __init__(self, what: dict[str, Any]) -> None:
        self._what = what
        self._file = open_hdf5(what["path"], what["member"])
        with _told(what):
            self._dataset = self._file[what["dataset"]]
        shape = self._dataset.shape or (1,)
        self.rows, self.band_rows = shape[0], max(1, (self._dataset.chunks or shape)[0])
        self._row_bytes = math.prod(shape[1:]) * self._dataset.dtype.itemsize

    def blocks(self, chunk: int, low: int, high: int) -> Iterator[Bytes]:
        first = chunk * self.band_rows
        with _told(self._what):
            where = slice(first + low, first + high) if self._dataset.shape else ()
            yield _as_bytes(np.asarray(self._dataset[where]), self._row_bytes)


def _as_bytes(values: np.ndarray[Any, Any], row_bytes: int) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, row_bytes)


@contextmanager
def _told(what: dict[str, Any]) -> Iterator[None]:
    """Turns what a library says of a damaged array into an error that names it."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as problem:
        name = what["dataset"] if what["driver"] == HDF5 else what["kvstore"]["path"]
        reason = str(problem).splitlines()[0][:200]
        raise CheckpointError(
            f"array {name!r} cannot be read: {reason}; it is damaged, copy the checkpoint anew"
        ) from problem


class SpooledRows(ArrayRows):
    """Rows that are read lane by lane, again and again: put aside in one pass, so that a chunk is decoded once."""

    def __init__(
        self, store: ArrayStore, row_bytes: int, ranges: Sequence[tuple[int, int]], scratch: str
    ) -> None:
        """Reads rows and puts them aside.

        Args:
          store: of the variable.
          row_bytes: of a stored row.
          ranges: stored rows [first, end) that will be read; none overlap.
          scratch: directory of the file that holds them; it is nameless, and gone when it is closed.
        Raises:
          CheckpointError: a chunk is damaged or cannot be read.
          OSError: the disk is full.
        """
        super().__init__(store)
        self._row_bytes = row_bytes
        self._ranges = sorted(ranges)
        self._places = [0, *accumulate(end - first for first, end in self._ranges)]
        self._file = tempfile.SpooledTemporaryFile(BLOCK_BYTES, dir=scratch)  # noqa: SIM115
        step = max(1, BLOCK_BYTES // row_bytes)
        buffer = np.empty((step, row_bytes), np.uint8)
        for first, end in self._ranges:
            for row in range(first, end, step):
                rows = buffer[: min(step, end - row)]
                super().read_into(row, rows)
                self._file.write(rows.data)

    def read_into(self, first: int, rows: Bytes) -> None:
        """Fills [n, bytes of a row] with stored rows from `first` on, all of one range."""
        at = bisect_right(self._ranges, (first, math.inf)) - 1
        self._file.seek((self._places[at] + first - self._ranges[at][0]) * self._row_bytes)
        self._file.readinto(rows.data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        super().__exit__(kind, error, trace)
