"""Compares table rows with the checkpoint: what a service reads of the bundle must be what was trained.

Rows of the bundle come through the reader that services use, rows of the checkpoint from where the layout in the
manifest says they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format.checksums import crc32c, digest
from bundle.format.manifest import Table, TableCheck, TableSource
from bundle.storage import files
from bundle.tables.reader import TableReader
from export.checkpoint.layouts import stored_rows
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry
from export.errors import VerificationFailed
from export.tables.sources import layout_of

SAMPLE_ROWS = 4096
_BLOCK_BYTES = 8 << 20
_APART = 128
"""Rows far from one another that are read at a time: the kernel maps 64 kB around each."""
_FLOATS: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
_HALF_STEP = 0.5 + 1e-4
"""Of int8 rows: half a step, and what the float32 arithmetic of scales may add."""
_TINY = 127 * 2.0**-126
"""Rows below it have no scale: they become zeros."""

Rows = NDArray[np.int64]
Vectors = NDArray[Any]


def verify_tables(
    checkpoint: Checkpoint, root: Path, tables: Mapping[str, Table], rows: int | None = SAMPLE_ROWS
) -> dict[str, TableCheck]:
    """Compares tables of a bundle with the checkpoint that they came from.

    Rows must be equal bit for bit, or the nearest values that their dtype has where they were converted.

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
    checks = {}
    for name, table in tables.items():
        entry = _find_variable(checkpoint, name, table)
        count = table.rows if rows is None else min(rows, table.rows)
        try:
            reader = TableReader(root, table)
            for block in _blocks(name, table, entry, count):
                trained = read_rows(checkpoint, table.source, block)[:, : table.dim]
                _compare(name, table, block, trained, reader.gather(block))
                reader.release()
            reader.close()
            if rows is None:
                _check_digests(root, name, table)
        except (BundleError, OSError) as problem:
            raise VerificationFailed(
                f"table {name!r}: its rows cannot be read: {problem}"
            ) from problem
        checks[name] = TableCheck(rows_compared=count, rows=table.rows)
    return checks


def read_rows(checkpoint: Checkpoint, source: TableSource, rows: Rows) -> Vectors:
    """Reads rows of a table as the checkpoint stores them, whatever its layout.

    Args:
      checkpoint: the open checkpoint.
      source: the variable and its layout.
      rows: [n] int64.
    Returns:
      [n, columns of the variable] in the stored dtype; the first columns are the table's.
    """
    stored = stored_rows(layout_of(source), rows)
    order = np.argsort(stored)
    ordered = stored[order]
    ends = [0, *(np.flatnonzero(np.diff(ordered) != 1) + 1).tolist(), rows.size]
    stretches = [(int(ordered[first]), end - first) for first, end in pairwise(ends) if end > first]
    read = list(checkpoint.read_each(source.key, stretches)) or [checkpoint.read(source.key, 0, 0)]
    values = np.empty((rows.size, read[0].shape[1]), read[0].dtype)
    values[order] = np.concatenate(read)
    return values


def _find_variable(checkpoint: Checkpoint, name: str, table: Table) -> Entry:
    source = table.source
    entry = checkpoint.entries.get(source.key)
    if entry is None:
        raise VerificationFailed(
            f"table {name!r}: checkpoint {checkpoint.prefix} has no variable {source.key!r}"
        )
    told = f"{entry.dtype} {list(entry.shape)} in checkpoint {checkpoint.prefix}"
    dtype = table.dtype if table.error is None else table.error.source_dtype
    if len(entry.shape) != 2 or entry.dtype != dtype:
        raise VerificationFailed(
            f"table {name!r} is of {dtype} [{table.rows}, {table.dim}] in the bundle, {told}"
        )
    layout = layout_of(source)
    last = stored_rows(layout, np.arange(max(0, table.rows - layout.lanes), table.rows))
    fits = entry.shape == (table.rows, table.dim)
    if source.layout == "sparse_core":
        fits = entry.shape[1] >= table.dim
    if not fits or last.max() >= entry.shape[0]:
        raise VerificationFailed(
            f"table {name!r} is [{table.rows}, {table.dim}] in the bundle, laid out as {source.layout} in {told}, "
            "which does not fit"
        )
    return entry


def _check_digests(root: Path, name: str, table: Table) -> None:
    for shard, size in table.extents():
        with files.locate(root, shard.file).open("rb") as file:
            file.seek(shard.offset)
            found = digest(file, size)
        if found.crc32c != shard.crc32c or (
            shard.blocks and found.blocks != shard.blocks
        ):  # a linked shard has none
            raise VerificationFailed(
                f"table {name!r}: shard {shard.file!r} does not match its digests in the manifest"
            )


def _blocks(name: str, table: Table, entry: Entry, count: int) -> Iterator[Rows]:
    """Yields the rows to be compared, as many at a time as fit into a block; all of them in their order."""
    step = max(1, _BLOCK_BYTES // (entry.shape[1] * entry.itemsize))
    if count == table.rows:
        for first in range(0, table.rows, step):
            yield np.arange(first, min(first + step, table.rows))
        return
    sample = _sample(name, table, entry, count)
    sample = sample[
        np.argsort(stored_rows(layout_of(table.source), sample))
    ]  # chunks are decoded once
    step = min(step, _APART)
    for first in range(0, count, step):
        yield sample[first : first + step]


def _sample(name: str, table: Table, entry: Entry, count: int) -> Rows:
    """Chooses rows: where shards and slices begin and end, at most half of `count`; the rest at random."""
    edges = {
        row for shard in table.shards for row in (shard.first_row, shard.first_row + shard.rows - 1)
    }
    if table.source.layout == "plain":
        slices = [part for part in entry.slices if part.bytes]
        edges |= {
            row for part in slices for row in (part.starts[0], part.starts[0] + part.shape[0] - 1)
        }
    else:
        lanes = layout_of(table.source).lanes
        edges |= {*range(min(lanes, table.rows)), *range(max(0, table.rows - lanes), table.rows)}
    random = np.random.default_rng(crc32c(name.encode()))
    chosen = np.array(sorted(edges), np.int64)
    if chosen.size > count // 2:
        chosen = random.choice(chosen, count // 2, replace=False)
    others = random.choice(table.rows, count, replace=False)
    return np.concatenate([chosen, others[~np.isin(others, chosen)]])[:count]


def _compare(
    name: str, table: Table, rows: Rows, trained: Vectors, read: NDArray[np.float32]
) -> None:
    """Compares [n, dim] of the checkpoint with what the bundle gives for them."""
    if table.error is None:
        exact = trained.astype(np.float32)
        wrong = (exact.view(np.uint32) != read.view(np.uint32)) & ~(
            np.isnan(exact) & np.isnan(read)
        )
        what = "differs from the checkpoint"
    else:
        wrong = _wrongly_converted(table.dtype, trained, read)
        what = f"is not what the checkpoint's becomes as {table.dtype}"
    if wrong.any():
        row, column = (int(each[0]) for each in np.nonzero(wrong))
        raise VerificationFailed(
            f"table {name!r}: row {rows[row]} {what}, first in column {column} ({trained[row, column]:.9g}); nothing "
            "may be published; run the export again, and report it if it persists"
        )
    if table.error is not None:
        furthest = np.abs(read - trained.astype(np.float64)).max(axis=1)
        if furthest.max() > table.error.max_abs * (1 + 1e-6):
            raise VerificationFailed(
                f"table {name!r}: row {rows[int(np.argmax(furthest))]} lies {furthest.max():.6g} from the checkpoint, "
                f"the manifest tells {table.error.max_abs:.6g} at most; export the table again"
            )


def _wrongly_converted(
    dtype: str, trained: Vectors, read: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Returns [n, dim]: whether a value is not the nearest that the dtype has, ties to even."""
    exact = trained.astype(np.float64)
    if dtype == "int8":
        steps = np.abs(exact).max(axis=1, keepdims=True) / 127
        return np.asarray(np.abs(read - exact) > steps * _HALF_STEP + _TINY)
    stored = read.astype(_FLOATS[dtype])
    wrong = ~np.isfinite(read) | (stored.astype(np.float32) != read)
    with np.errstate(over="ignore"):  # beyond the largest value
        for end in (-np.inf, np.inf):
            beside = np.nextafter(stored, stored.dtype.type(end)).astype(np.float64)
            nearer = np.abs(read - exact) - np.abs(beside - exact)
            odd = stored.view(np.uint32 if stored.itemsize == 4 else np.uint16) % 2 == 1
            wrong |= (nearer > 0) | ((nearer == 0) & odd)
    return np.asarray(wrong)
