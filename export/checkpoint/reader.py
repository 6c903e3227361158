"""Opens a checkpoint, lists its variables, reads rows. Knows storage, never meaning; never imports
TensorFlow.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import google_crc32c
import numpy as np

from export.checkpoint.datafiles import REQUESTS, DataFiles, check_unchanged, stamps_of
from export.checkpoint.formats import object_graph as objectgraph
from export.checkpoint.formats import orbax
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.dumps import is_dump, list_dump
from export.checkpoint.formats.keras import find_keras, list_keras
from export.checkpoint.formats.keras_archive import read_asset
from export.checkpoint.formats.keras_metadata import read_saved_layers
from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.formats.orbax import (
    OrbaxCheckpoint,
    find_orbax,
    is_keras_state,
    list_orbax,
)
from export.checkpoint.formats.prefixes import STATE_FILE, find_prefix
from export.checkpoint.formats.safetensors import find_safetensors, list_safetensors
from export.checkpoint.formats.tensorbundle import file_problems, read_index, read_string
from export.checkpoint.formats.torch_distributed import (
    is_torch_distributed,
    list_torch_distributed,
)
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Listing, Slice
from export.errors import CheckpointError
from object_store.locations import Location
from object_store.remote_path import RemotePath

STRING_BYTES_MAX = 512 << 20
"""The maximum size of a string scalar, which is read as a whole. The largest one is the object
graph of a model with many variables.
"""
SMALL_BYTES_MAX = 1 << 30
"""The maximum size of a variable that is read as a whole: larger ones are tables, whose rows are
read.
"""

Values = np.ndarray[Any, Any]


def open_checkpoint(path: Location, complete: bool = True) -> Checkpoint:
    """Opens a V2 checkpoint of TensorFlow, one of Orbax or PyTorch, what Keras saved in HDF5, or a
    parameter server's dump.

    Args:
      path: On this machine or in a store: a directory (its newest checkpoint), a prefix, a
        prefix' `.index` file, the directory of an Orbax checkpoint or of one that
        `torch.distributed.checkpoint` saved, or a file of safetensors or the index of several; on
        this machine also `.weights.h5`, `.keras` or `.h5`, and a directory that SOK or HugeCTR
        dumped tables to.
      complete: Whether a checkpoint whose data files are missing or cut short is rejected.
    Raises:
      CheckpointError: The checkpoint is missing, unfinished, damaged, or of a kind that is not
        read; the error says which and what to do.
    """
    try:
        checkpoint: Checkpoint | None
        if is_torch_distributed(path):
            checkpoint = Checkpoint(path, list_torch_distributed(path))
        elif isinstance(path, Path):
            checkpoint = _open_local(path)
        else:
            checkpoint = _open_remote_orbax(path)
        if checkpoint is None:
            checkpoint = _open_safetensors(path)
    except OSError as problem:
        raise CheckpointError(f"checkpoint {path} cannot be read: {problem.strerror}") from problem

    # TensorFlow comes last: its errors name the kinds of checkpoints that are read.
    if checkpoint is None:
        prefix = find_prefix(path)
        listing = read_index(prefix)
        storage = replace(listing.storage, layers=read_saved_layers(prefix))
        checkpoint = Checkpoint(prefix, listing._replace(storage=storage))
    if complete and checkpoint.problems:
        raise CheckpointError(checkpoint.problems[0])
    return checkpoint


def is_jax(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what Orbax saved of a program in JAX, and not of a
    model of Keras; reads no listing of arrays.

    Raises:
      CheckpointError: The only Orbax checkpoint is incomplete, or it is damaged.
    """
    orbax_checkpoint = _find_orbax_alone(path)
    return orbax_checkpoint is not None and not is_keras_state(orbax_checkpoint)


def may_hold_keras_lists(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what Orbax saved, and this may be the variables of a
    model of Keras in lists; reads no listing of arrays.

    Raises:
      CheckpointError: See `is_jax`.
    """
    orbax_checkpoint = _find_orbax_alone(path)
    return orbax_checkpoint is not None and orbax.may_hold_keras_lists(orbax_checkpoint)


def _find_orbax_alone(path: Location) -> OrbaxCheckpoint | None:
    """Returns the Orbax checkpoint at a path; None if the path holds another kind of checkpoint, or
    none.
    """
    if isinstance(path, Path):
        if not path.is_dir() or any(path.glob("*.index")) or is_dump(path):
            return None
    elif not _may_be_remote_orbax(path):
        return None
    return find_orbax(path)


def is_torch(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what PyTorch saved; reads no listing of tensors."""
    return is_torch_distributed(path) or _safetensors_of(path) is not None


def _open_local(path: Path) -> Checkpoint | None:
    """Opens a checkpoint on this machine that neither TensorFlow nor PyTorch saved; returns None if
    there is none.
    """
    if path.is_file():
        return _open_keras(path)
    if not path.is_dir() or any(path.glob("*.index")):
        return None
    if is_dump(path):
        return Checkpoint(path, list_dump(path))

    checkpoint = None
    if not (path / "saved_model.pb").is_file():
        orbax_checkpoint = find_orbax(path)
        if orbax_checkpoint is not None:
            checkpoint = _open_orbax(orbax_checkpoint)
        elif not (path / STATE_FILE).is_file():
            checkpoint = _open_keras(path)
    return checkpoint


def _open_keras(path: Path) -> Checkpoint | None:
    """Opens what Keras saved in HDF5, alone or in an archive; returns None if there is nothing."""
    file = find_keras(path)
    if file is None:
        return None
    return Checkpoint(file, list_keras(file))


def _open_remote_orbax(path: RemotePath) -> Checkpoint | None:
    """Opens an Orbax checkpoint in a store; returns None if there is none."""
    if not _may_be_remote_orbax(path):
        return None
    orbax_checkpoint = find_orbax(path)
    if orbax_checkpoint is None:
        return None
    return _open_orbax(orbax_checkpoint)


def _may_be_remote_orbax(path: RemotePath) -> bool:
    """Returns whether a path in a store is a directory without a checkpoint of TensorFlow."""
    names = path.listing()
    return bool(names) and not _has_tensor_bundle(names)


def _open_orbax(orbax_checkpoint: OrbaxCheckpoint) -> Checkpoint:
    listing = list_orbax(orbax_checkpoint)
    return Checkpoint(orbax_checkpoint.directory, listing, orbax_checkpoint.name)


def _open_safetensors(path: Location) -> Checkpoint | None:
    """Opens files of safetensors; returns None if there are none."""
    file = _safetensors_of(path)
    if file is None:
        return None
    return Checkpoint(file, list_safetensors(file))


def _safetensors_of(path: Location) -> Location | None:
    """Returns the file of safetensors to read; None if there is none, or if a checkpoint of
    TensorFlow lies beside it.
    """
    if path.is_dir() and _has_tensor_bundle([child.name for child in path.iterdir()]):
        return None
    return find_safetensors(path)


def _has_tensor_bundle(names: Collection[str]) -> bool:
    """Returns whether the names in a directory are those of a checkpoint of TensorFlow."""
    return STATE_FILE in names or any(name.endswith(".index") for name in names)


class Checkpoint:
    """An open checkpoint. Holds the index in memory and no data file open.

    Attributes:
      prefix: Its path without `.index`; of another kind, its directory or file.
      fingerprint: The digest of the index file, which itself holds the crc32c of every variable.
      entries: Every variable by its key.
      storage: The storage of the variables.
    """

    def __init__(self, prefix: Location, listing: Listing, name: str = "") -> None:
        self.prefix = prefix
        self.fingerprint = listing.fingerprint
        self.entries = MappingProxyType(dict(listing.entries))
        self.storage = listing.storage
        self._listing = listing
        self._name = name or prefix.name
        self._spans: dict[str, tuple[Values, Values, list[Slice]]] = {}
        self._array: tuple[str, ArrayRows] | None = None

    @property
    def name(self) -> str:
        """Base name, e.g. `ckpt-1200`; bytes that are no UTF-8 as `\\xff`."""
        return os.fsencode(self._name).decode(errors="backslashreplace")

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """The problems of data files: they are gone, cut short, or too small."""
        return (*self.storage.problems, *file_problems(self.entries))

    def reopened(self) -> Checkpoint:
        """Returns the same checkpoint without anything that this one holds open."""
        return Checkpoint(self.prefix, self._listing, self._name)

    def check_unchanged(self) -> None:
        """Looks at its data files again.

        Raises:
          CheckpointError: A file is not what it was when the checkpoint was opened.
        """
        check_unchanged(stamps_of(part for entry in self.entries.values() for part in entry.slices))

    @cached_property
    def graph(self) -> ObjectGraph | None:
        """The object graph; None in a checkpoint that was saved by variable names alone.

        Raises:
          CheckpointError: It is damaged.
        """
        if objectgraph.KEY not in self.entries:
            return None
        try:
            return objectgraph.parse_object_graph(self.read_string(objectgraph.KEY))
        except Malformed as problem:
            raise CheckpointError(
                f"checkpoint {self.prefix}: its object graph cannot be read: {problem}"
            ) from problem

    def read_string(self, key: str) -> bytes:
        """Reads a string scalar, after checking its crc.

        Raises:
          CheckpointError: There is no such variable, or it is no string scalar, too long, or
            damaged.
        """
        entry = self._entry(key)
        if entry.dtype != "string" or entry.shape != () or len(entry.slices) != 1:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix} is {entry.dtype} {list(entry.shape)}, no "
                "string scalar"
            )
        if entry.bytes > STRING_BYTES_MAX:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix} has {entry.bytes} bytes; at most "
                f"{STRING_BYTES_MAX} are read"
            )
        stored = entry.slices[0]
        data = np.empty(stored.bytes, np.uint8)
        with DataFiles() as files:
            files.read_into(stored.file, stored.offset, data)
        text = read_string(data.tobytes(), stored.crc32c or 0)
        if text is None:
            raise CheckpointError(self._damaged(key))
        return text

    def read_asset(self, path: str, bytes_max: int) -> bytes:
        """Returns the first bytes of an asset, `bytes_max` at most, or all where an array holds it.

        Raises:
          CheckpointError: It is damaged.
        """
        asset = self.storage.assets[path]
        if not asset.file:
            return self.read_all(asset.member).tobytes()
        try:
            return read_asset(asset, bytes_max)
        except (OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as problem:
            raise CheckpointError(
                f"checkpoint {self.prefix}: its asset {path} cannot be read: {problem}; it is "
                "damaged, copy it anew"
            ) from problem

    def read_all(self, key: str) -> Values:
        """Reads a small variable after checking its crc.

        Returns:
          [*shape] in the stored dtype (bfloat16 as ml_dtypes' type), owned by the caller.
        Raises:
          CheckpointError: There is no such variable, its dtype has no fixed width, it is larger
            than SMALL_BYTES_MAX, or it is damaged.
        """
        entry = self._numeric(key)
        if math.prod(entry.shape) * entry.itemsize > SMALL_BYTES_MAX:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix} is too large to be read as a whole; read "
                "rows of it"
            )
        if not entry.shape:
            # A scalar is read as the only row of a vector.
            slices = tuple(part._replace(starts=(0,), shape=(1,)) for part in entry.slices)
            vector = entry._replace(shape=(1,), slices=slices)
            return self._rows(vector, 0, 1, checked=True).reshape(())
        return self._rows(entry, 0, entry.shape[0], checked=True)

    def read(self, key: str, start_row: int, count: int, files: DataFiles | None = None) -> Values:
        """Reads rows, holding no more than them and what one slice has of them.

        The crc of a slice covers all of it, so rows alone cannot be checked; a copy checks them.

        Args:
          key: A variable of rank 1 or more.
          start_row: The first row.
          count: The number of rows.
          files: Data files that stay open from read to read; None to open and close the files that
            are read.
        Returns:
          [count, *shape[1:]] in the stored dtype (bfloat16 as ml_dtypes' type), owned by the
          caller.
        Raises:
          CheckpointError: There is no such variable or row, the dtype has no fixed width, or a data
            file cannot be read.
        """
        entry = self._numeric(key)
        if not entry.shape or start_row < 0 or count < 0 or start_row + count > entry.shape[0]:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix}, of shape {list(entry.shape)}, has no rows "
                f"{start_row} to {start_row + count}"
            )
        return self._rows(entry, start_row, count, files)

    def read_each(self, key: str, ranges: Iterable[tuple[int, int]]) -> Iterator[Values]:
        """Yields what `read` returns of each range of rows, first row and count; slices in a store
        several at a time, ranges of an array from the last to the first.
        """
        if self._entry(key).array is not None:
            # Only the chunks that were read last stay decoded. The copy reads forwards: reading
            # backwards compares with chunks that were decoded again.
            blocks = [self.read(key, first, count) for first, count in reversed(list(ranges))]
            yield from reversed(blocks)
            return
        if isinstance(self.prefix, RemotePath):
            ranges = iter(ranges)
            with ThreadPoolExecutor(REQUESTS, thread_name_prefix="rowcast-rows") as pool:
                # Batches bound the rows that are in memory before the caller takes them.
                while batch := list(islice(ranges, 4 * REQUESTS)):
                    yield from pool.map(lambda rows: self.read(key, *rows), batch)
            return
        with DataFiles() as files:
            for first, count in ranges:
                yield self.read(key, first, count, files)

    def _rows(
        self,
        entry: Entry,
        first: int,
        count: int,
        files: DataFiles | None = None,
        checked: bool = False,
    ) -> Values:
        if entry.array is not None:
            return self._read_array(entry, first, count)

        parts = self._overlapping(entry, first, first + count)
        covered_values = 0
        for part in parts:
            covered_values += _shared_rows(part, first, count) * math.prod(part.shape[1:])
        # Compared before memory is allocated: the shape in a damaged index may be huge.
        if covered_values != math.prod((count, *entry.shape[1:])):
            raise CheckpointError(self._uncovered(entry.key))

        values = np.empty((count, *entry.shape[1:]), NUMPY_DTYPES[entry.dtype])
        # Slices that overlap can cover as many values as there are and still leave a gap.
        filled = np.zeros(values.shape, bool)
        with DataFiles() if files is None else nullcontext(files) as opened:
            for part in parts:
                low = max(first, part.starts[0])
                rows = _shared_rows(part, first, count)
                row_bytes = math.prod(part.shape[1:]) * values.itemsize
                data = np.empty(rows * row_bytes, np.uint8)
                opened.read_into(part.file, part.offset + (low - part.starts[0]) * row_bytes, data)
                # A read of some rows is not checked: the checksum is that of the whole slice.
                if checked and part.crc32c not in (None, google_crc32c.value(data)):
                    raise CheckpointError(self._damaged(entry.key))

                # A slice may be cut along any axis.
                ends = zip(part.starts[1:], part.shape[1:], strict=True)
                box = (
                    slice(low - first, low - first + rows),
                    *(slice(start, start + size) for start, size in ends),
                )
                values[box] = data.view(values.dtype).reshape(rows, *part.shape[1:])
                filled[box] = True

        if not filled.all():
            raise CheckpointError(self._uncovered(entry.key))
        return values

    def _read_array(self, entry: Entry, first: int, count: int) -> Values:
        """Reads rows of an array, which stays open: rows of the chunks that were read last cost no
        second decoding.
        """
        assert entry.array is not None  # noqa: S101
        if self._array is None or self._array[0] != entry.key:
            self._array = entry.key, ArrayRows(entry.array)
        shape = (count, *entry.shape[1:])
        values = np.zeros(shape, NUMPY_DTYPES[entry.dtype])
        if values.size:
            self._array[1].read_into(first, values.view(np.uint8).reshape(count, -1))
        return values

    def _overlapping(self, entry: Entry, first: int, end: int) -> list[Slice]:
        """Returns the slices that hold rows in [first, end), among 10^6 of them without looking at
        all.
        """
        if entry.key not in self._spans:
            parts = sorted(
                (part for part in entry.slices if math.prod(part.shape)),
                key=lambda part: part.starts,
            )
            starts = np.array([part.starts[0] for part in parts], np.int64)
            ends = np.array([part.starts[0] + part.shape[0] for part in parts], np.int64)
            self._spans[entry.key] = starts, np.maximum.accumulate(ends), parts
        starts, reach, parts = self._spans[entry.key]
        # The running maximum of ends is sorted, as the ends alone are not: slices of the same rows
        # may end at different rows.
        low = int(np.searchsorted(reach, first, side="right"))
        high = int(np.searchsorted(starts, end, side="left"))
        return parts[low:high]

    def _entry(self, key: str) -> Entry:
        if key not in self.entries:
            raise CheckpointError(f"checkpoint {self.prefix} has no variable {key!r}")
        return self.entries[key]

    def _numeric(self, key: str) -> Entry:
        entry = self._entry(key)
        if entry.dtype not in NUMPY_DTYPES:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix} holds {entry.dtype} values, which are not "
                "read here"
            )
        return entry

    def _damaged(self, key: str) -> str:
        return (
            f"{key!r} in checkpoint {self.prefix} does not match its checksum: the data file is "
            "damaged; copy it anew"
        )

    def _uncovered(self, key: str) -> str:
        return (
            f"the slices of {key!r} in checkpoint {self.prefix} overlap or leave a gap; save "
            "the checkpoint anew"
        )


def _shared_rows(part: Slice, first: int, count: int) -> int:
    """Returns how many of rows [first, first + count) lie in a slice."""
    end = min(first + count, part.starts[0] + part.shape[0])
    return max(0, end - max(first, part.starts[0]))
