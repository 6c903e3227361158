"""Bits of files that are flipped, and the arrays that an export would still take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.bands import SlicesOverlap
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.stored_rows import SliceRows, StoredRows
from export.checkpoint.variables import Entry
from export.errors import CheckpointError
from export.tables.zip_sums import check_zip_sums
from tests.laws.stored_arrays import DTYPES, Reach, Values


class Flip(NamedTuple):
    """A bit of a file.

    Attributes:
      file: The file.
      byte: Its byte.
      bit: The bit in the byte, from 0.
      is_description: Whether the byte describes arrays, and is no value of one.
    """

    file: Path
    byte: int
    bit: int
    is_description: bool = False


@contextmanager
def flipped(flip: Flip) -> Iterator[None]:
    """Flips a bit until the end."""
    content = flip.file.read_bytes()
    changed = bytearray(content)
    changed[flip.byte] ^= 1 << flip.bit
    flip.file.write_bytes(changed)
    try:
        yield
    finally:
        flip.file.write_bytes(content)


def opened_rows(entry: Entry) -> StoredRows:
    """Opens the rows of a matrix as a copy of a table does."""
    if entry.array is not None:
        return ArrayRows(entry.array)
    rows, columns = entry.shape
    return SliceRows(entry.slices, columns, entry.itemsize, 0, rows)


def whole_array(checkpoint: Checkpoint, key: str) -> Values:
    """Returns an array that is read at once. `read_all` itself compares no crc32 of PyTorch.

    Raises:
      CheckpointError: It is rejected.
    """
    values = checkpoint.read_all(key)
    check_zip_sums(Path(), key, checkpoint.entries[key].slices)
    return values


def copied_rows(checkpoint: Checkpoint, key: str) -> Values:
    """Returns a matrix that lies in slices as a copy of a table takes it.

    Raises:
      CheckpointError: It is rejected.
      SlicesOverlap: Likewise; a copy turns this into the other error.
    """
    entry = checkpoint.entries[key]
    check_zip_sums(Path(), key, entry.slices)
    values = np.empty(entry.shape, DTYPES[entry.dtype])
    with opened_rows(entry) as stored:
        stored.read_into(0, values.view(np.uint8).reshape(len(values), -1))
        if stored.damaged() is not None:
            raise CheckpointError("a slice is damaged")
    return values


def read_unless_rejected(directory: Path, keys: Iterable[str]) -> list[tuple[str, Values]]:
    """Returns the arrays that an export would take, each way it reads them."""
    readings: list[tuple[str, Values]] = []
    with suppress(CheckpointError):
        checkpoint = open_checkpoint(directory)
        for key in checkpoint.entries.keys() & keys:
            with suppress(CheckpointError):
                readings.append((key, whole_array(checkpoint, key)))
            entry = checkpoint.entries[key]
            if len(entry.shape) == 2 and entry.slices and entry.bytes:
                with suppress(CheckpointError, SlicesOverlap):
                    readings.append((key, copied_rows(checkpoint, key)))
    return readings


def difference(values: Values, actual: Values) -> NDArray[np.uint8]:
    """Returns [*shape, itemsize] the bits that differ between two arrays of one dtype and shape."""
    assert (actual.dtype, actual.shape) == (values.dtype, values.shape)
    before, after = (
        np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.itemsize)
        for array in (values, actual)
    )
    return before ^ after


def assert_within_reach(
    differing: NDArray[np.uint8], reach: Reach, chunk: Sequence[int], flip: Flip
) -> None:
    """Fails if a flipped bit changed more than what no checksum covers."""
    assert reach != "nothing", flip
    if reach == "a bit":
        assert np.bitwise_count(differing).sum() == 1, flip
    else:
        chunks = np.argwhere(differing.any(axis=-1)) // chunk
        assert len(np.unique(chunks, axis=0)) == 1, flip
