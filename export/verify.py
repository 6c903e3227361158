"""The judge of table rows: reads checkpoint and bundle anew and compares them bit for bit.

It shares nothing with what wrote the shards: rows of the checkpoint come through `Checkpoint.read`, rows of the bundle
by plain reads at the places that the manifest tells.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bundle import files
from bundle.checksums import Digest, crc32c
from bundle.errors import BundleError
from bundle.manifest import Shard, Table, TableCheck
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, Entry
from export.errors import VerificationFailed

BLOCK_BYTES = 8 << 20
SAMPLE_ROWS = 4096

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def verify_tables(
    checkpoint: Checkpoint, root: Path, tables: Mapping[str, Table], rows: int | None = SAMPLE_ROWS
) -> dict[str, TableCheck]:
    """Compares tables of a bundle with the checkpoint they came from.

    Args:
      checkpoint: the open checkpoint.
      root: the bundle's directory, committed or staged.
      tables: the manifest's.
      rows: rows to compare of each table: ends of shards and slices, then others at random, the same in every run.
        None: all, and the digests of the shards with them.
    Returns:
      What was compared, by table.
    Raises:
      VerificationFailed: a row differs, a shard is missing or cut short, or the table is not the variable's; names it.
      CheckpointError: the checkpoint cannot be read.
    """
    return {name: _verify_table(checkpoint, root, name, table, rows) for name, table in tables.items()}


def _verify_table(checkpoint: Checkpoint, root: Path, name: str, table: Table, rows: int | None) -> TableCheck:
    entry = checkpoint.entries.get(table.source.key)
    if entry is None:
        raise VerificationFailed(f"table {name!r}: checkpoint {checkpoint.prefix} has no variable {table.source.key!r}")
    if table.source.layout != "plain":
        raise VerificationFailed(f"table {name!r} has the layout {table.source.layout!r}, which is not known here")
    if entry.shape != (table.rows, table.dim) or entry.dtype != table.dtype:
        raise VerificationFailed(
            f"table {name!r} is {table.dtype} [{table.rows}, {table.dim}] in the bundle, {entry.dtype} "
            f"{list(entry.shape)} in checkpoint {checkpoint.prefix}"
        )
    row_bytes = table.dim * NUMPY_DTYPES[table.dtype].itemsize
    if rows is None or rows >= table.rows:
        for shard in table.shards:
            _compare_shard(checkpoint, root, name, table, shard)
        return TableCheck(rows_compared=table.rows, rows=table.rows)
    starts = [shard.first_row for shard in table.shards]
    sample = _sample(name, table, entry, rows)
    for first, count in _runs(sample, frozenset(starts), max(1, BLOCK_BYTES // row_bytes)):
        shard = table.shards[bisect_right(starts, first) - 1]
        written = _read_shard(root, shard, first, count, row_bytes)
        _compare_rows(name, first, checkpoint.read(entry.key, first, count), written)
    return TableCheck(rows_compared=len(sample), rows=table.rows)


def _compare_shard(checkpoint: Checkpoint, root: Path, name: str, table: Table, shard: Shard) -> None:
    row_bytes = table.dim * NUMPY_DTYPES[table.dtype].itemsize
    step = max(1, BLOCK_BYTES // row_bytes)
    digest = Digest()
    for first in range(shard.first_row, shard.first_row + shard.rows, step):
        count = min(step, shard.first_row + shard.rows - first)
        written = _read_shard(root, shard, first, count, row_bytes)
        _compare_rows(name, first, checkpoint.read(table.source.key, first, count), written)
        digest.update(written)
    if (digest.crc32c, digest.blocks) != (shard.crc32c, shard.blocks):
        raise VerificationFailed(f"table {name!r}: shard {shard.file!r} does not match its digests in the manifest")


def _read_shard(root: Path, shard: Shard, first: int, count: int, row_bytes: int) -> Bytes:
    """Reads [count, row_bytes] of a shard by the manifest alone."""
    try:
        with files.locate(root, shard.file).open("rb") as file:
            file.seek(shard.offset + (first - shard.first_row) * row_bytes)
            data = file.read(count * row_bytes)
    except (BundleError, OSError) as problem:
        raise VerificationFailed(f"shard {shard.file!r} cannot be read: {problem}") from problem
    if len(data) != count * row_bytes:
        raise VerificationFailed(
            f"shard {shard.file!r} ends within row {first + len(data) // row_bytes}: it was cut short"
        )
    return np.frombuffer(data, np.uint8).reshape(count, row_bytes)


def _compare_rows(name: str, first: int, trained: np.ndarray[Any, Any], written: Bytes) -> None:
    stored = trained.view(np.uint8).reshape(written.shape)
    if not np.array_equal(stored, written):
        row = int(np.argmax((stored != written).any(axis=1)))
        column = int(np.argmax(stored[row] != written[row])) // trained.itemsize
        raise VerificationFailed(
            f"table {name!r}: row {first + row} differs from the checkpoint, first in column {column}; nothing may be "
            "published; run the export again, and report it if it persists"
        )


def _sample(name: str, table: Table, entry: Entry, count: int) -> list[int]:
    """Chooses rows: where shards and slices begin and end, at most half of `count`; the rest at random."""
    edges = {row for shard in table.shards for row in (shard.first_row, shard.first_row + shard.rows - 1)}
    edges |= {
        row for part in entry.slices if part.bytes for row in (part.starts[0], part.starts[0] + part.shape[0] - 1)
    }
    random = np.random.default_rng(crc32c(name.encode()))
    chosen = sorted(edges)
    if len(chosen) > count // 2:
        chosen = [int(row) for row in random.choice(chosen, count // 2, replace=False)]
    sample = set(chosen)
    for row in random.choice(table.rows, count, replace=False):
        if len(sample) < count:
            sample.add(int(row))
    return sorted(sample)


def _runs(rows: list[int], breaks: frozenset[int], longest: int) -> Iterator[tuple[int, int]]:
    """Yields first row and length of stretches of neighbouring rows, none of them across a break."""
    start = 0
    for place in range(1, len(rows) + 1):
        ends = place == len(rows) or rows[place] != rows[place - 1] + 1 or rows[place] in breaks
        if ends or place - start == longest:
            yield rows[start], place - start
            start = place
