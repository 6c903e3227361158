"""What all dumps of parameter servers have in common: a file of keys and a file of vectors, in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from export.checkpoint.variables import NUMPY_DTYPES, DumpedTable, Entry, Slice, can_be
from export.errors import CheckpointError
from runtime.object_store import local_stamp

KEY_DTYPES = ("int32", "int64", "uint32", "uint64")


class ValueFile(NamedTuple):
    """Values in one file: where they begin, and how many."""

    path: Path
    offset: int
    dtype: str
    size: int


def sized(path: Path, offset: int, dtype: str, total: int) -> ValueFile:
    """Tells what a file of `total` bytes holds.

    Raises:
      CheckpointError: it ends within a value, or has a name that is no text.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as problem:
        raise CheckpointError(f"dump file {str(path)!r} has a name that is no UTF-8 text; rename it") from problem
    size, rest = divmod(total - offset, NUMPY_DTYPES[dtype].itemsize)
    if rest:
        raise CheckpointError(f"dump file {path} ends within a {dtype}: it was cut short; copy it anew")
    return ValueFile(path, offset, dtype, size)


def head_of(path: Path, count: int, writer: str) -> tuple[bytes, int]:
    """Returns the head of a file and the bytes of the whole.

    Args:
      path: the file.
      count: bytes of the head.
      writer: what writes such a file, for the message.
    Raises:
      CheckpointError: it is missing, or shorter than its head.
    """
    try:
        with path.open("rb") as file:
            head, total = file.read(count), path.stat().st_size
    except FileNotFoundError as problem:
        raise CheckpointError(f"dump file {path} is missing, which {writer} writes; copy it anew") from problem
    if len(head) < count:
        raise CheckpointError(f"dump file {path} has {len(head)} bytes, {writer}'s head alone {count}; copy it anew")
    return head, total


def table_of(
    directory: Path, name: str, keys: ValueFile, vectors: ValueFile, slots: Mapping[str, ValueFile]
) -> DumpedTable:
    """Puts the files of a table together.

    Args:
      directory: of the dump; keys of entries are paths within it.
      name: of the table.
      keys: its keys.
      vectors: their vectors.
      slots: slot variables by name.
    Raises:
      CheckpointError: their sizes do not agree.
    """
    rows = keys.size
    if keys.dtype not in KEY_DTYPES or vectors.dtype in KEY_DTYPES:
        raise CheckpointError(f"dump file {keys.path} holds {keys.dtype} keys, {vectors.path} {vectors.dtype} vectors")
    if not rows:
        raise CheckpointError(f"dump file {keys.path} holds no key: table {name!r} is empty; dump it after training")
    dim, rest = divmod(vectors.size, rows)
    if rest or not dim or not can_be((rows, dim)):
        raise CheckpointError(
            f"dump file {vectors.path} holds {vectors.size} values, which {rows} keys cannot share evenly: one of the "
            "two was cut short, or they are not of one dump; copy both anew"
        )
    for slot, file in slots.items():
        if file.size != vectors.size:
            raise CheckpointError(
                f"dump file {file.path} holds {file.size} values of {slot!r}, the table {vectors.size}; copy it anew"
            )
    held = {slot: _entry(directory, file, (rows, dim)) for slot, file in slots.items()}
    return DumpedTable(name, _entry(directory, vectors, (rows, dim)), _entry(directory, keys, (rows,)), held)


def _entry(directory: Path, file: ValueFile, shape: tuple[int, ...]) -> Entry:
    status = file.path.stat()
    count = file.size * NUMPY_DTYPES[file.dtype].itemsize
    where = Slice(str(file.path), file.offset, count, None, (0,) * len(shape), shape, local_stamp(status))
    return Entry(file.path.relative_to(directory).as_posix(), file.dtype, shape, (where,))
