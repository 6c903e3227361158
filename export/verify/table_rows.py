"""Compares table rows with the checkpoint: what a service reads of the bundle must be what was
trained.

Rows of the bundle come through the reader that services use, rows of the checkpoint from where the
layout in the manifest says they are. The library that decoded an array for the copy decodes it for
the comparison, too: the array is opened again, and its rows are read from the last to the first and
across the borders of chunks. That proves where each row was put, and not that it was decoded well:
the check names the library that is trusted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from export.checkpoint.formats.arrays import decoder_of
from export.checkpoint.layouts import StoredOrder, fits, stored_rows
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry
from export.errors import VerificationFailed
from export.tables.sources import layout_of

SAMPLE_ROWS = 4096
_BLOCK_BYTES = 8 << 20
_APART = 128
"""Rows far from one another that are read at a time: the kernel maps 64 kB around each."""
_GROUP_ROWS = 16
"""Neighbors that are compared together where the rows are in a store: each group is one request."""
_GROUPED = 1024
"""Rows in groups that are read at a time: as many groups as requests are sent at a time, twice."""
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
    checkpoint: Checkpoint,
    root: Path,
    tables: Mapping[str, Table],
    rows: int | None = SAMPLE_ROWS,
    open_table: Callable[[Table], TableReader] | None = None,
) -> dict[str, TableCheck]:
    """Compares tables of a bundle with the checkpoint that they came from.

    Rows must be equal bit for bit, or the nearest values that their dtype has where they were
    converted.

    Args:
      checkpoint: the open checkpoint.
      root: the bundle's directory, committed or staged.
      tables: the manifest's.
      rows: rows to compare of each table: ends of segments and slices, then others at random, the
        same in every run; with `open_table`, groups of neighbors, of which the first is chosen so.
        None: all, and the digests of the segments with them.
      open_table: opens a table that does not lie in `root`, whose digests were compared before.
    Returns:
      What was compared, by table.
    Raises:
      VerificationFailed: a row differs, a segment is missing or cut short, or the table is not the
        variable's; names it.
      CheckpointError: the checkpoint cannot be read.
    """
    checks = {}
    checkpoint = checkpoint.reopened()
    for name, table in tables.items():
        entry = _find_variable(checkpoint, name, table)
        count = table.rows if rows is None else min(rows, table.rows)
        try:
            reader = TableReader(root, table) if open_table is None else open_table(table)
            compared = 0
            for block in _blocks(name, table, entry, count, grouped=open_table is not None):
                compared += block.size
                trained = read_rows(checkpoint, table.source, block)[:, : table.dim]
                read = reader.gather(block)
                _compare(name, table, block, trained, read)
                if table.non_finite is None:
                    _check_finite(name, block, read)
                reader.release()
            reader.close()
            if rows is None and open_table is None:
                _check_digests(root, name, table)
        except (BundleError, OSError) as problem:
            raise VerificationFailed(
                f"table {name!r}: its rows cannot be read: {problem}"
            ) from problem
        decoder = None if entry.array is None else decoder_of(entry.array)
        checks[name] = TableCheck(rows_compared=compared, rows=table.rows, decoder=decoder)
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


def _check_finite(name: str, rows: Rows, vectors: Vectors) -> None:
    """Checks that rows are finite: a copy looked at all of them, and nothing at those of a linked
    table.

    Raises:
      VerificationFailed: A row is not; names it.
    """
    lost = ~np.isfinite(vectors).all(axis=1)
    if lost.any():
        raise VerificationFailed(
            f"table {name!r}: row {rows[lost].min()} holds NaN or an infinity, and so do "
            f"{np.count_nonzero(lost)} of the {rows.size} rows that were compared with it; repair "
            "them or take an older checkpoint, or allow them (tables."
            f"{name}.allow_non_finite = true in a recipe, --allow-non-finite for tables)"
        )


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
    rows, columns = entry.shape
    if not fits(layout_of(source), table.rows, table.dim, (rows, columns)):
        raise VerificationFailed(
            f"table {name!r} is [{table.rows}, {table.dim}] in the bundle, laid out as "
            f"{source.layout} in {told}, which does not fit"
        )
    return entry


def _check_digests(root: Path, name: str, table: Table) -> None:
    for segment, size in table.extents():
        with files.locate(root, segment.file).open("rb") as file:
            file.seek(segment.offset)
            found = digest(file, size)
        if found.crc32c != segment.crc32c or (
            segment.blocks and found.blocks != segment.blocks
        ):  # a linked segment has none
            raise VerificationFailed(
                f"table {name!r}: segment {segment.file!r} does not match its digests in the "
                "manifest"
            )


def _blocks(name: str, table: Table, entry: Entry, count: int, *, grouped: bool) -> Iterator[Rows]:
    """Yields the rows to be compared, as many at a time as fit into a block; all of them in their
    order.

    Args:
      name, table, entry: What is compared.
      count: How many rows; of a sample, about as many.
      grouped: Whether a sample consists of groups of neighbors, which one request to a store reads.
    """
    step = max(1, _BLOCK_BYTES // (entry.shape[1] * entry.itemsize))
    if count == table.rows:
        # In the table's order, every block of a stack would need all of an array's chunks.
        stored = _stored_order(table, entry) if entry.array is not None else None
        for first in range(0, table.rows, step):
            rows = np.arange(first, min(first + step, table.rows))
            yield rows if stored is None else stored.rows_at(rows)
        return
    if not grouped:
        yield from _sample(name, table, entry, count, min(step, _APART))
        return
    groups = max(1, count // _GROUP_ROWS)
    for firsts in _sample(name, table, entry, groups, max(1, min(step, _GROUPED) // _GROUP_ROWS)):
        neighbors = firsts[:, np.newaxis] + np.arange(_GROUP_ROWS)
        yield np.unique(neighbors.clip(max=table.rows - 1))


def _sample(name: str, table: Table, entry: Entry, count: int, step: int) -> Iterator[Rows]:
    """Yields rows: where segments and slices begin and end, at most half of `count`; the rest at
    random.

    Rows come in the order in which the checkpoint stores them, so that a chunk is decoded once. No
    list of all rows of the table is made, nor one of all the chosen rows: a table may have 10^11
    rows, and half of them may be compared.

    Args:
      name, table: what is compared.
      entry: its variable.
      count: rows to choose, fewer than the table has.
      step: rows at a time.
    """
    random = np.random.default_rng(crc32c(name.encode()))
    order = _stored_order(table, entry)
    edges = np.sort(order.ranks_of(_edges(table, entry)))
    if edges.size > count // 2:
        edges = np.sort(random.choice(edges, count // 2, replace=False))

    # The other ranks are divided into equal intervals, and one rank is drawn from each: all are
    # distinct, ascend, and need no memory for those that are not drawn.
    others = table.rows - edges.size
    intervals = count - edges.size
    width, wider = divmod(others, intervals)
    edges_before = edges - np.arange(edges.size)
    done = 0
    for first in range(0, intervals, step):
        number = np.arange(first, min(first + step, intervals) + 1)
        starts = number * width + np.minimum(number, wider)
        drawn = random.integers(starts[:-1], starts[1:])
        ranks = drawn + np.searchsorted(edges_before, drawn, side="right")
        yield order.rows_at(ranks)

        # Edges that lie before the end of these intervals, with the chunks that were just read.
        behind = int(np.searchsorted(edges, ranks[-1]))
        if first + step >= intervals:
            behind = edges.size
        for at in range(done, behind, step):
            yield order.rows_at(edges[at : min(at + step, behind)])
        done = behind


def _stored_order(table: Table, entry: Entry) -> StoredOrder:
    """Returns the order in which rows are compared: of an array, the opposite of the copy's."""
    layout = layout_of(table.source)
    return StoredOrder(layout, table.rows, descending=entry.array is not None)


def _edges(table: Table, entry: Entry) -> Rows:
    """Returns the rows at which segments and slices begin and end, each once."""
    edges = {
        row
        for segment in table.segments
        for row in (segment.first_row, segment.first_row + segment.rows - 1)
    }
    if table.source.layout == "plain":
        slices = [part for part in entry.slices if part.bytes and part.starts[0] < table.rows]
        edges |= {
            row
            for part in slices
            for row in (part.starts[0], min(part.starts[0] + part.shape[0], table.rows) - 1)
        }
    else:
        lanes = layout_of(table.source).lanes
        edges |= {*range(min(lanes, table.rows)), *range(max(0, table.rows - lanes), table.rows)}
    return np.array(sorted(edges), np.int64)


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
            f"table {name!r}: row {rows[row]} {what}, first in column {column} "
            f"({trained[row, column]:.9g}); nothing "
            "may be published; run the export again, and report it if it persists"
        )
    if table.error is not None:
        furthest = np.abs(read - trained.astype(np.float64)).max(axis=1)
        if furthest.max() > table.error.max_abs * (1 + 1e-6):
            raise VerificationFailed(
                f"table {name!r}: row {rows[int(np.argmax(furthest))]} lies {furthest.max():.6g} "
                "from the checkpoint, "
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
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the largest value
        for end in (-np.inf, np.inf):
            beside = np.nextafter(stored, stored.dtype.type(end)).astype(np.float64)
            nearer = np.abs(read - exact) - np.abs(beside - exact)
            odd = stored.view(np.uint32 if stored.itemsize == 4 else np.uint16) % 2 == 1
            wrong |= (nearer > 0) | ((nearer == 0) & odd)
    return np.asarray(wrong)
