"""Opens a checkpoint, lists its variables, reads rows. Knows storage, never meaning; never imports
TensorFlow.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
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
    OrbaxPlace,
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
SMALL_BYTES_MAX = 1 << 30

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
      complete: Whether one whose data files are missing or cut short is rejected.
    Raises:
      CheckpointError: Missing, unfinished, damaged, or of a kind that is not read; says which and
        what to do.
    """
    try:
        found = _open_torch_distributed(path)
        if found is None:
            found = _open_other(path) if isinstance(path, Path) else _open_remote_orbax(path)
        if found is None:
            found = _open_safetensors(path)
    except OSError as problem:
        raise CheckpointError(f"checkpoint {path} cannot be read: {problem.strerror}") from problem
    if found is None:
        prefix = find_prefix(path)
        listing = read_index(prefix)
        layers = read_saved_layers(prefix)
        found = Checkpoint(
            prefix, listing._replace(storage=replace(listing.storage, layers=layers))
        )
    if complete and found.problems:
        raise CheckpointError(found.problems[0])
    return found


def is_jax(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what Orbax saved of a program in JAX, and not of a
    model of Keras; reads no listing of arrays.

    Raises:
      CheckpointError: There is only an incomplete one of Orbax, or a damaged one.
    """
    place = _orbax_place(path)
    return place is not None and not is_keras_state(place)


def may_hold_keras_lists(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what Orbax saved, and this may be the variables of a
    model of Keras in lists; reads no listing of arrays.

    Raises:
      CheckpointError: See `is_jax`.
    """
    place = _orbax_place(path)
    return place is not None and orbax.may_hold_keras_lists(place)


def _orbax_place(path: Location) -> OrbaxPlace | None:
    """Returns the Orbax checkpoint at a path; None: there is another one, or none."""
    if isinstance(path, Path):
        other = not path.is_dir() or any(path.glob("*.index")) or is_dump(path)
    else:
        names = path.listing()
        other = not names or STATE_FILE in names or any(name.endswith(".index") for name in names)
    return None if other else find_orbax(path)


def is_torch(path: Location) -> bool:
    """Returns whether `open_checkpoint` opens what PyTorch saved; reads no listing of tensors."""
    return is_torch_distributed(path) or _safetensors_of(path) is not None


def _open_other(path: Path) -> Checkpoint | None:
    """Opens a checkpoint that TensorFlow did not save; None: it is none."""
    if path.is_file():
        file = find_keras(path)
    elif not path.is_dir() or any(path.glob("*.index")):
        return None
    elif is_dump(path):
        return Checkpoint(path, list_dump(path))
    elif (path / "saved_model.pb").is_file():
        return None
    elif (place := find_orbax(path)) is not None:
        return Checkpoint(place.directory, list_orbax(place), place.name)
    else:
        file = None if (path / STATE_FILE).is_file() else find_keras(path)
    return None if file is None else Checkpoint(file, list_keras(file))


def _open_remote_orbax(path: RemotePath) -> Checkpoint | None:
    """Opens an Orbax checkpoint in a store; None: it is none."""
    names = path.listing()
    if not names or STATE_FILE in names or any(name.endswith(".index") for name in names):
        return None
    place = find_orbax(path)
    return None if place is None else Checkpoint(place.directory, list_orbax(place), place.name)


def _open_torch_distributed(path: Location) -> Checkpoint | None:
    """Opens what torch.distributed saved; None: it is none."""
    if not is_torch_distributed(path):
        return None
    return Checkpoint(path, list_torch_distributed(path))


def _open_safetensors(path: Location) -> Checkpoint | None:
    """Opens files of safetensors; None: there are none."""
    file = _safetensors_of(path)
    return None if file is None else Checkpoint(file, list_safetensors(file))


def _safetensors_of(path: Location) -> Location | None:
    """Returns the file of safetensors to read; None: there is none, or a checkpoint of TensorFlow
    beside it.
    """
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        if STATE_FILE in names or any(name.endswith(".index") for name in names):
            return None
    return find_safetensors(path)


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
          CheckpointError: One is not what it was when the checkpoint was opened.
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
          CheckpointError: No such variable, no string scalar, too long, or damaged.
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
          CheckpointError: No such variable, no fixed-width dtype, larger than SMALL_BYTES_MAX, or
            damaged.
        """
        entry = self._numeric(key)
        if math.prod(entry.shape) * entry.itemsize > SMALL_BYTES_MAX:
            raise CheckpointError(
                f"{key!r} in checkpoint {self.prefix} is too large to be read as a whole; read "
                "rows of it"
            )
        if not entry.shape:
            lines = tuple(part._replace(starts=(0,), shape=(1,)) for part in entry.slices)
            return self._rows(entry._replace(shape=(1,), slices=lines), 0, 1, checked=True).reshape(
                ()
            )
        return self._rows(entry, 0, entry.shape[0], checked=True)

    def read(self, key: str, start_row: int, count: int, files: DataFiles | None = None) -> Values:
        """Reads rows, holding no more than them and what one slice has of them.

        The crc of a slice covers all of it, so rows alone cannot be checked; a copy checks them.

        Args:
          key: A variable of rank 1 or more.
          start_row: The first row.
          count: How many.
          files: Stay open from read to read; None: those that are read are opened and closed.
        Returns:
          [count, *shape[1:]] in the stored dtype (bfloat16 as ml_dtypes' type), owned by the
          caller.
        Raises:
          CheckpointError: No such variable or rows, no fixed-width dtype, or a data file that
            cannot be read.
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
            found = [self.read(key, first, count) for first, count in reversed(list(ranges))]
            yield from reversed(found)
            return
        if isinstance(self.prefix, RemotePath):
            ranges = iter(ranges)
            with ThreadPoolExecutor(REQUESTS, thread_name_prefix="rowcast-rows") as pool:
                while some := list(islice(ranges, 4 * REQUESTS)):
                    yield from pool.map(lambda each: self.read(key, *each), some)
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
        held = sum(_rows_held(part, first, count) * math.prod(part.shape[1:]) for part in parts)
        if held != math.prod((count, *entry.shape[1:])):  # before memory is allocated
            raise CheckpointError(self._uncovered(entry.key))
        values = np.empty((count, *entry.shape[1:]), NUMPY_DTYPES[entry.dtype])
        filled = np.zeros(values.shape, bool)
        with DataFiles() if files is None else nullcontext(files) as opened:
            for part in parts:
                low = max(first, part.starts[0])
                rows = _rows_held(part, first, count)
                row_bytes = math.prod(part.shape[1:]) * values.itemsize
                data = np.empty(rows * row_bytes, np.uint8)
                opened.read_into(part.file, part.offset + (low - part.starts[0]) * row_bytes, data)
                if checked and part.crc32c not in (None, google_crc32c.value(data)):
                    raise CheckpointError(self._damaged(entry.key))
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
        low = int(np.searchsorted(reach, first, side="right"))
        return parts[low : int(np.searchsorted(starts, end, side="left"))]

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


def _rows_held(part: Slice, first: int, count: int) -> int:
    return max(0, min(first + count, part.starts[0] + part.shape[0]) - max(first, part.starts[0]))
