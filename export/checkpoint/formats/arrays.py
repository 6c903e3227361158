"""Rows of a variable that is stored in encoded chunks: Orbax's zarr arrays, chunked HDF5 datasets.

tensorstore and h5py find and decode the chunks. A chunk cannot be entered in its middle, so rows
are read window by window: a window is as many whole bands of chunks (chunks side by side, from the
first column to the last) as WINDOW_BYTES hold, and at least one. The library keeps the decoded
chunks of one window. Rows that are read window after window, in either direction, cost one
decoding of each chunk.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np

from bundle.arithmetic import ceil_div
from bundle.format.checksums import extend
from export.checkpoint.datafiles import changed, check_unchanged
from export.checkpoint.formats.hdf5 import open_hdf5
from export.checkpoint.source_sums import SourceSum
from export.checkpoint.variables import ArrayStore
from export.errors import CheckpointError
from object_store.locations import is_url
from object_store.stamps import Stamp, local_stamp

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HDF5 = "hdf5"
WINDOW_BYTES = 16 << 20
"""The size of a window, unless a band of chunks is larger. Larger windows take more memory; smaller
windows cost more calls of the library.
"""
_STORED_BYTES = 16 << 20
"""Stored bytes that are summed at a time: a stored chunk can be as large as a window."""
_REASON_MAX = 400
"""The maximum number of characters of a library's error that a message repeats."""
_CACHE_OVERHEAD_BYTES = 1 << 20
"""What tensorstore's cache holds beside the decoded chunks of a window: without room for it, the
library drops a chunk after each read.
"""
_NODES_BYTES = 8 << 20
"""Bytes of the cache for the nodes of an OCDBT store's tree, apart from chunks."""
_HDF5_SLOTS = 1 << 14
"""Slots in h5py's cache of chunks: two chunks of a window should not compete for one."""
_COPIES = 2
"""Copies of a window that are in memory while it is decoded: one as stored, one decoded."""
_CHUNK_KEY = re.compile(rb"(?:c[./])?(\d+)(?:[./]\d+)*")
"""A chunk's key in zarr 2 (`3.0`, `3/0`) and zarr 3 (`c/3/0`). The first number counts chunks along
the rows.
"""


def load_tensorstore(what: str) -> Any:
    """Imports tensorstore.

    Args:
      what: The array or checkpoint that is to be read, for the error.

    Raises:
      CheckpointError: tensorstore is not installed; the error says how to install it.
    """
    try:
        import tensorstore
    except ImportError as problem:
        raise CheckpointError(
            f"{what} is read with tensorstore, which is not installed; run `pip install "
            "'rowcast[orbax]'`"
        ) from problem
    return tensorstore


def decoder_of(store: ArrayStore) -> str:
    """Returns the library that decodes an array, and its version, e.g. `tensorstore 0.1.86`."""
    library = "tensorstore"
    if json.loads(store.spec)["driver"] == HDF5:
        library = "h5py"
    return f"{library} {installed_version(library)}"


def memory_bytes(shape: Sequence[int], chunk: Sequence[int], itemsize: int) -> int:
    """Returns the maximum number of bytes that are in memory while rows of an array are read.

    Args:
      shape: The shape of the array.
      chunk: The extents of a chunk, which is decoded as a whole.
      itemsize: The size of a value in bytes.
    """
    band = _band_bytes(shape, chunk, itemsize)
    bands = 1
    if shape:
        bands = ceil_div(shape[0], chunk[0])
    return _COPIES * min(max(band, WINDOW_BYTES), bands * band)


def _band_bytes(shape: Sequence[int], chunk: Sequence[int], itemsize: int) -> int:
    """Returns the decoded bytes of chunks side by side. Chunks at an edge are decoded whole."""
    if not shape:
        return itemsize
    columns = (ceil_div(size, side) * side for size, side in zip(shape[1:], chunk[1:], strict=True))
    return chunk[0] * math.prod(columns) * itemsize


class ArrayRows:
    """Rows of a chunked variable. Used as a context, it checks at the end that the files are still
    those that it opened.
    """

    def __init__(self, store: ArrayStore) -> None:
        """Opens the array.

        Raises:
          CheckpointError: The array changed, lacks chunks, cannot be opened, or a library that
            reads it is missing.
        """
        if store.absent:
            raise CheckpointError(absent_chunks(store))
        self._stamps = {}
        if store.stamp is not None:
            self._stamps = {store.file: store.stamp}
        check_unchanged(self._stamps)

        # An HDF5 file is one file with one stamp. A zarr array has many files, of which the stamp
        # covers one: the others are stamped here.
        spec = json.loads(store.spec)
        self._description_file = None
        if spec["driver"] != HDF5 and store.file and not is_url(store.file):
            self._description_file = store.file
        self._stamps_before = _file_stamps(self._description_file)

        self._array: _Dataset | _Zarr
        if spec["driver"] == HDF5:
            self._array = _Dataset(spec)
        else:
            self._array = _Zarr(spec)
        self._window = -1
        self._first_read = self._array.rows
        self._end_read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._array.close()
        self._window = -1
        if error is None:
            self._check_unchanged()

    def read_into(self, first: int, rows: Bytes) -> None:
        """Fills [n, bytes of a row] with stored rows from `first` on.

        Raises:
          CheckpointError: A chunk is missing, damaged or cannot be read; the error names it and its
            file.
        """
        if first + len(rows) > self._array.rows:
            raise CheckpointError(
                f"array {self._array.name!r} has {self._array.rows} rows, none at "
                f"{first + len(rows) - 1}: the checkpoint changed; read one that is complete"
            )
        self._first_read = min(self._first_read, first)
        self._end_read = max(self._end_read, first + len(rows))

        size = self._array.window_rows
        windows = range(first // size, ceil_div(first + len(rows), size))
        # Rows may also be read from the last to the first: begin with the window that is decoded.
        if self._window in windows[1:]:
            windows = windows[::-1]
        for window in windows:
            if window != self._window:
                self._array.forget()
                self._window = window
            low = max(first, window * size)
            high = min(first + len(rows), (window + 1) * size)
            rows[low - first : high - first] = self._array.read(low, high - low)

    def read_each(self, ranges: Iterable[tuple[int, int]], rows: Bytes) -> None:
        """Fills [n, bytes of a stored row] with ranges of stored rows, one after the other.

        Args:
          ranges: The first row and the number of rows of each range.
          rows: The rows to fill.
        """
        filled = 0
        for first, count in ranges:
            self.read_into(first, rows[filled : filled + count])
            filled += count

    def stored_sums(self, first: int, end: int) -> tuple[SourceSum, ...]:
        """Sums the chunks that hold rows [first, end) as they are stored. Decodes nothing.

        Raises:
          CheckpointError: A chunk cannot be read, or a file changed since the array was opened.
        """
        # The bytes are read past the cache of decoded chunks, whose memory is free meanwhile.
        self._array.forget()
        self._window = -1
        count = crc = 0
        for piece in self._array.stored(first, end):
            count += len(piece)
            crc = extend(crc, piece)
        self._check_unchanged()
        return (SourceSum(file=self._array.name, slice_offset=first, bytes=count, crc32c=crc),)

    def sums(self) -> tuple[SourceSum, ...]:
        """Returns the sums of all rows that were read. Raises the same errors as `stored_sums`."""
        return self.stored_sums(self._first_read, max(self._first_read, self._end_read))

    def damaged(self) -> None:
        """Returns nothing: a chunk that cannot be decoded is rejected when it is read."""

    def _check_unchanged(self) -> None:
        check_unchanged(self._stamps)
        current = _file_stamps(self._description_file)
        for file in self._stamps_before.keys() | current.keys():
            if self._stamps_before.get(file) != current.get(file):
                raise changed(file)


def absent_chunks(store: ArrayStore) -> str:
    """Returns a message that chunks of an array are not stored, why that may be, and what to do."""
    return (
        f"{store.absent} of its chunks are not stored ({store.file}): they were lost, or held only "
        "zeros, which Orbax left out of zarr 3 arrays before version 0.10 and which look the same; "
        "restore the checkpoint with the training program and save it with Orbax 0.10 or later"
    )


class _Zarr:
    """A zarr array, which tensorstore reads.

    Attributes:
      name: The last step of the array's path in the checkpoint.
      rows: The number of rows; 1 for a scalar.
      window_rows: The number of rows in a window.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        # A chunk that is not stored is an error, never zeros (ADR 38). Files do not change while
        # they are read, which is checked at the end, so that cached chunks stay valid.
        self._spec = spec | {"fill_missing_data_reads": False, "recheck_cached_data": "open"}
        self.name = str(spec["kvstore"]["path"]).rstrip("/").rpartition("/")[2]
        self._tensorstore = load_tensorstore(f"array {self.name!r}")
        self._array = self._open(WINDOW_BYTES + _CACHE_OVERHEAD_BYTES)
        shape = self._array.shape
        chunk = self._array.chunk_layout.read_chunk.shape
        itemsize = self._array.dtype.numpy_dtype.itemsize
        band_bytes = max(1, _band_bytes(shape, chunk, itemsize))

        # A scalar is read as one row.
        self.rows = 1
        chunk_rows = 1
        if shape:
            self.rows = shape[0]
            chunk_rows = max(1, chunk[0])
        self.window_rows = chunk_rows * max(1, WINDOW_BYTES // band_bytes)
        # A chunk that its cache cannot hold would be decoded again for each read of its rows.
        self._window_bytes = max(WINDOW_BYTES, band_bytes) + _CACHE_OVERHEAD_BYTES
        self._is_large = band_bytes > WINDOW_BYTES
        if self._is_large:
            self.forget()

    def _open(self, cache_bytes: int) -> Any:
        context = self._tensorstore.Context(
            {
                "cache_pool": {"total_bytes_limit": cache_bytes},
                "cache_pool#nodes": {"total_bytes_limit": _NODES_BYTES},
                "data_copy_concurrency": {"limit": 1},
            }
        )
        with _array_errors(self.name):
            return self._tensorstore.open(self._spec, read=True, context=context).result()

    def forget(self) -> None:
        """Drops the decoded chunks, unless they are small: the next window needs the memory."""
        if self._is_large:
            self._array = None

    def close(self) -> None:
        """Drops the array and its decoded chunks."""
        self._array = None

    def read(self, first: int, count: int) -> Bytes:
        """Returns [count, bytes of a row]."""
        if self._array is None:
            self._array = self._open(self._window_bytes)
        with _array_errors(self.name):
            array = self._array
            if not array.rank:
                array = array[self._tensorstore.newaxis]
            values = array[first : first + count].read(order="C").result()
        return _as_bytes(values, count)

    def stored(self, first: int, end: int) -> Iterator[bytes]:
        """Yields the stored bytes of the chunks that hold rows [first, end), piece by piece."""
        array = self._open(0)
        rows = max(1, array.chunk_layout.write_chunk.shape[0])
        chunk_range = range(first // rows, ceil_div(end, rows))
        with _array_errors(self.name):
            keys = []
            for key in array.kvstore.list().result():
                match = _CHUNK_KEY.fullmatch(key)
                if match is not None and int(match[1]) in chunk_range:
                    keys.append((int(match[1]), key))

            for _, key in sorted(keys):
                if self._is_remote:
                    # The store's generation (S3: ETag) stands for the bytes: a resumed run
                    # compares it without reading a value.
                    empty = array.kvstore.read(key, byte_range=slice(0, 0)).result()
                    yield empty.stamp.generation
                else:
                    yield from _pieces(array.kvstore, key)

    @property
    def _is_remote(self) -> bool:
        kvstore = self._spec["kvstore"]
        return bool(kvstore.get("base", kvstore)["driver"] != "file")


class _Dataset:
    """A chunked dataset, which h5py reads. Its attributes are the same as those of `_Zarr`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.name = spec["dataset"]
        self._path = spec["path"]
        self._file = open_hdf5(self._path, spec["member"])
        with _array_errors(self.name, self._path):
            dataset = self._file[self.name]
            shape = dataset.shape
            self._chunk = dataset.chunks or shape
            band_bytes = max(1, _band_bytes(shape, self._chunk, dataset.dtype.itemsize))
            # While a dataset is open, everyone who opens it gets the cache that it was first opened
            # with.
            del dataset
            self._dataset = _with_cache(self._file, self.name, max(WINDOW_BYTES, band_bytes))
        self.rows = shape[0]
        self.window_rows = max(1, self._chunk[0]) * max(1, WINDOW_BYTES // band_bytes)

    def forget(self) -> None:
        """Does nothing: the library makes room before it decodes a chunk."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, first: int, count: int) -> Bytes:
        """Returns [count, bytes of a row]."""
        with _array_errors(self.name, self._path, first, first + count):
            values = self._dataset[first : first + count]
        return _as_bytes(values, count)

    def stored(self, first: int, end: int) -> Iterator[bytes]:
        """Yields the stored bytes of the chunks that hold rows [first, end)."""
        starts = [range(first - first % self._chunk[0], end, self._chunk[0])]
        for size, side in zip(self._dataset.shape[1:], self._chunk[1:], strict=True):
            starts.append(range(0, size, side))
        with _array_errors(self.name, self._path, first, end):
            for offset in product(*starts):
                yield self._dataset.id.read_direct_chunk(offset)[1]


def _with_cache(file: Any, name: str, cache_bytes: int) -> Any:
    """Opens a dataset with a cache for its decoded chunks."""
    import h5py

    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(_HDF5_SLOTS, cache_bytes + (1 << 20), 1.0)
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))


def _as_bytes(values: Any, count: int) -> Bytes:
    """Returns the values of rows as [count, bytes of a row], without a copy where they are
    contiguous.
    """
    return np.ascontiguousarray(values).reshape(count, -1).view(np.uint8)


def _pieces(kvstore: Any, key: bytes) -> Iterator[bytes]:
    """Yields a stored value piece by piece."""
    offset = 0
    while True:
        try:
            piece = (
                kvstore.read(key, byte_range=slice(offset, offset + _STORED_BYTES)).result().value
            )
        except ValueError:  # The value ends earlier; only this error shows it.
            yield kvstore.read(key, byte_range=slice(offset, None)).result().value
            return
        yield piece
        offset += len(piece)


def _file_stamps(description_file: str | None) -> dict[str, Stamp]:
    """Returns the stamps of all files in the folder that describes an array, and below it."""
    if description_file is None:
        return {}
    files = (file for file in Path(description_file).parent.rglob("*") if file.is_file())
    return {str(file): local_stamp(file.stat()) for file in files}


@contextmanager
def _array_errors(name: str, file: str = "", first: int = 0, end: int = 0) -> Iterator[None]:
    """Turns a library's error about a damaged array into an error that names the array.

    Args:
      name: The name of the array.
      file: The file of the array; "" where the library's error names the file and the chunk, as
        tensorstore's does.
      first: The first row to read.
      end: The row after the last one to read; 0 where no rows are read yet.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as problem:
        location = ""
        if file:
            rows = f", chunks of rows {first} to {end}" if end else ""
            location = f"{rows} in {file}"
        # tensorstore repeats the whole specification of the array behind its reason.
        reason = str(problem).partition(" [tensorstore_spec")[0].splitlines()[0][:_REASON_MAX]
        raise CheckpointError(
            f"array {name!r}{location} cannot be read: {reason}; it is damaged or incomplete, copy "
            "the checkpoint anew"
        ) from problem
