"""Checkpoints of any size with one table, valid to the last checksum: rows at random, or a file
that is one hole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from bundle.format.checksums import combine, joined
from tests.units.export.checkpoint.tensor_bundles import (
    entry,
    field,
    header,
    shape_proto,
    slice_key,
    slice_proto,
)
from tests.units.export.checkpoint.tensor_bundles import table as table_of

CHUNK_BYTES = 64 << 20
SHIFTS_BYTES = 1 << 20
DIM = 128
ROW_BYTES = 4 * DIM
KEY = "t"


@dataclass(frozen=True)
class BigTable:
    """A checkpoint in a directory, and how its table lies there.

    Attributes:
      rows: The number of rows of the table.
      options: The options of `rowcast-export tables` that state the table.
    """

    directory: Path
    rows: int
    bytes: int
    data: Path
    options: tuple[str, ...]


def write_plain(
    directory: Path, size: int, *, slices: int = 1, hole: bool = False, dim: int = DIM
) -> BigTable:
    """Writes a table whose rows lie in order, in one data file.

    Args:
      directory: The directory of the checkpoint, which is made if it does not exist.
      size: The bytes of the table, whole rows and a multiple of `slices`.
      slices: The number of slices of the table.
      hole: Whether nothing is written: the file is all zeros, and needs no disk space.
      dim: The number of float32 values of a row.
    """
    rows = size // (4 * dim)
    data = directory / "c.data-00000-of-00001"
    directory.mkdir(parents=True)
    crcs = _write_hole(data, size, slices) if hole else _write_values(data, size, slices)
    part = rows // slices
    if slices == 1:
        pairs = [(KEY.encode(), entry(1, (rows, dim), 1, size, crcs[0]))]
    else:
        boxes = [((part * number, part), (0, -1)) for number in range(slices)]
        whole = (
            field(1, 1)
            + field(2, shape_proto((rows, dim)))
            + b"".join(field(7, slice_proto(box)) for box in boxes)
        )
        pairs = [(KEY.encode(), whole)]
        for number, box in enumerate(boxes):
            first = 1 + number * (size // slices)
            pairs.append(
                (slice_key(KEY, box), entry(1, (part, dim), first, size // slices, crcs[number]))
            )
    (directory / "c.index").write_bytes(table_of([(b"", header()), *pairs]))
    return BigTable(directory, rows, size, data, ("--table", f"t={KEY}"))


def change_rows(table: BigTable, count: int) -> None:
    """Changes rows at random of a table that `write_plain` wrote in one slice."""
    dim = table.bytes // table.rows // 4
    rows = np.random.default_rng(1).choice(table.rows, count, replace=False)
    values = np.memmap(table.data, np.uint8, "r+")
    by_row = values[1:].reshape(table.rows, 4 * dim)
    # Another value of each: the sign of its numbers.
    by_row[rows, 3::4] ^= 0x80
    values.flush()
    crc = int(google_crc32c.value(values[1:]))
    pairs = [(b"", header()), (KEY.encode(), entry(1, (table.rows, dim), 1, table.bytes, crc))]
    (table.directory / "c.index").write_bytes(table_of(pairs))


def write_stack(directory: Path, size: int, cores: int) -> BigTable:
    """Writes a SparseCore stack of one table and its padding; a layout file describes it."""
    plain = write_plain(directory, size, slices=min(cores, 64))
    core_rows = plain.rows // cores
    rows = (core_rows - 8) * cores - 3
    layout = directory / "layout.toml"
    layout.write_text(
        f'[tables.t]\nkey = "{KEY}"\nkind = "sparse_core"\nrows = {rows}\ndim = {DIM}\ncores = '
        f"{cores}\n"
        f"rotation = {cores // 4}\n"
    )
    options = ("--layout", str(layout), "--accept-stated-layouts")
    return BigTable(directory, rows, rows * ROW_BYTES, plain.data, options)


def _write_values(data: Path, size: int, slices: int) -> list[int]:
    count = (CHUNK_BYTES + SHIFTS_BYTES) // 4
    values = np.random.default_rng(0).standard_normal(count, np.float32).view(np.uint8)
    shift = 0
    crcs = []
    bytes_left = size // slices
    crc = 0
    with data.open("wb") as file:
        file.write(b"\0")  # no alignment, as in a checkpoint
        written = 0
        while written < size:
            # No two rows are alike: rows that are would be taken for padding.
            chunk = values[shift : shift + min(bytes_left, CHUNK_BYTES, size - written)]
            shift = (shift + 4) % SHIFTS_BYTES
            file.write(chunk.data)
            crc = int(google_crc32c.extend(crc, chunk))
            written += len(chunk)
            bytes_left -= len(chunk)
            if not bytes_left:
                crcs.append(crc)
                bytes_left = size // slices
                crc = 0
    return crcs


def _write_hole(data: Path, size: int, slices: int) -> list[int]:
    with data.open("wb") as file:
        os.truncate(file.fileno(), size + 1)
    return [crc_of_zeros(size // slices)] * slices


def crc_of_zeros(count: int) -> int:
    """Returns the crc32c of `count` zero bytes, without summing them one by one."""
    parts = []
    crc = int(google_crc32c.value(b"\0"))
    size = 1
    while size <= count:
        if count & size:
            parts.append((crc, size))
        crc = combine(crc, crc, size)
        size = 2 * size
    return joined(parts)
