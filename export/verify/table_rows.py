"""Compares table rows with the checkpoint: a service must read the trained rows from the bundle.

Rows of the bundle come through the reader that services use, rows of the checkpoint from the
positions that the layout in the manifest states. The library that decoded an array for the copy
decodes it for the comparison, too: the array is opened again, and its rows are read from the last
to the first and across the borders of chunks. That proves where each row was put, but not that it
was decoded well: the check names the library that is trusted with the decoding.
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
from bundle.format.checksums import crc32c, digest, extend
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.manifest import Segment, Table, TableCheck, TableSource
from bundle.storage import files
from bundle.tables.maps import MappedRows
from bundle.tables.reader import TableReader
from bundle.tables.segments import RowRange
from export.checkpoint.formats.arrays import decoder_of
from export.checkpoint.layouts import StoredOrder, fits, stored_rows
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry
from export.errors import VerificationFailed
from export.tables.sources import layout_of

SAMPLE_ROWS = 4096
"""The number of rows of each table that are compared where not all are."""
_BLOCK_BYTES = 8 << 20
"""The size of the rows that are compared at a time, which bounds the memory."""
_SCATTERED_ROWS = 128
"""The number of distant rows that are read at a time: the kernel maps 64 kB around each of them."""
_GROUP_ROWS = 16
"""The number of neighbors that are compared together where rows are in a store: each group is one
request.
"""
_GROUPED_ROWS = 1024
"""The number of rows in groups that are read at a time: twice as many groups as requests that are
sent at a time.
"""
_FLOATS: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
_HALF_STEP = 0.5 + 1e-4
"""The largest error of an int8 value in steps: half a step, and the rounding of float32 scales."""
_TINY = 127 * 2.0**-126
"""The largest absolute value up to which an int8 row has no scale, so that it becomes zeros: its
scale would be no normal float32.
"""

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
      checkpoint: The open checkpoint.
      root: The bundle's directory, committed or staged.
      tables: The tables of the manifest.
      rows: The number of rows to compare of each table: the ends of segments and slices, then rows
        at random, the same in every run. With `open_table`, they are groups of neighbors, of which
        the first is chosen so. None: all rows, and the digests of the segments.
      open_table: Opens a table that does not lie in `root`, whose digests were compared before.

    Returns:
      The checks of the tables, by name.

    Raises:
      VerificationFailed: A row differs, a segment is missing or cut short, or a table does not fit
        its variable; the message names it.
      CheckpointError: The checkpoint cannot be read.
    """
    checks = {}
    # A fresh decoder, so that no chunk comes from the cache of the copy.
    checkpoint = checkpoint.reopened()
    for name, table in tables.items():
        entry = _find_variable(checkpoint, name, table)
        count = table.rows
        if rows is not None:
            count = min(rows, count)
        try:
            compared = _compare_table(checkpoint, root, name, table, entry, count, open_table)
            if rows is None and open_table is None:
                _check_digests(root, name, table)
        except (BundleError, OSError) as problem:
            raise VerificationFailed(
                f"table {name!r}: its rows cannot be read: {problem}"
            ) from problem
        decoder = None
        if entry.array is not None:
            decoder = decoder_of(entry.array)
        checks[name] = TableCheck(rows_compared=compared, rows=table.rows, decoder=decoder)
    return checks


def _compare_table(
    checkpoint: Checkpoint,
    root: Path,
    name: str,
    table: Table,
    entry: Entry,
    count: int,
    open_table: Callable[[Table], TableReader] | None,
) -> int:
    """Compares about `count` rows of a table; returns the number of rows that were compared."""
    if open_table is None:
        reader = TableReader(root, table)
    else:
        reader = open_table(table)
    compared = 0
    for rows in _blocks(name, table, entry, count, grouped=open_table is not None):
        compared += rows.size
        trained = read_rows(checkpoint, table.source, rows)[:, : table.dim]
        vectors = reader.gather(rows)
        _compare(name, table, rows, trained, vectors)
        if table.non_finite is None:
            _check_finite(name, rows, vectors)
        # Without this, the pages of the whole table would stay in memory.
        reader.release()
    reader.close()
    return compared


def read_rows(checkpoint: Checkpoint, source: TableSource, rows: Rows) -> Vectors:
    """Reads rows of a table as the checkpoint stores them, whatever its layout.

    Args:
      checkpoint: The open checkpoint.
      source: The variable and its layout.
      rows: [n] int64, the rows to read.
    Returns:
      [n, columns of the variable] in the stored dtype; the first columns are the table's.
    """
    stored = stored_rows(layout_of(source), rows)
    order = np.argsort(stored)
    ordered = stored[order]
    # Rows that are stored one behind the other are one range.
    gaps = np.flatnonzero(np.diff(ordered) != 1) + 1
    borders = [0, *gaps.tolist(), rows.size]
    ranges = [(int(ordered[first]), end - first) for first, end in pairwise(borders) if end > first]
    blocks = list(checkpoint.read_each(source.key, ranges))
    if not blocks:
        # An empty read has the columns and the dtype of the variable.
        blocks = [checkpoint.read(source.key, 0, 0)]
    values = np.empty((rows.size, blocks[0].shape[1]), blocks[0].dtype)
    values[order] = np.concatenate(blocks)
    return values


def _check_finite(name: str, rows: Rows, vectors: Vectors) -> None:
    """Checks that rows are finite. Copying a table checks all of its rows, but the rows of a linked
    table are checked nowhere else.

    Raises:
      VerificationFailed: A row is not finite; names it.
    """
    not_finite = ~np.isfinite(vectors).all(axis=1)
    if not_finite.any():
        raise VerificationFailed(
            f"table {name!r}: row {rows[not_finite].min()} holds NaN or an infinity, and so do "
            f"{np.count_nonzero(not_finite)} of the {rows.size} rows that were compared with it; "
            "repair them or take an older checkpoint, or allow them (tables."
            f"{name}.allow_non_finite = true in a recipe, --allow-non-finite for tables)"
        )


def _find_variable(checkpoint: Checkpoint, name: str, table: Table) -> Entry:
    """Returns the variable of a table.

    Raises:
      VerificationFailed: It is missing, or has another dtype or shape.
    """
    source = table.source
    entry = checkpoint.entries.get(source.key)
    if entry is None:
        raise VerificationFailed(
            f"table {name!r}: checkpoint {checkpoint.prefix} has no variable {source.key!r}"
        )
    description = f"{entry.dtype} {list(entry.shape)} in checkpoint {checkpoint.prefix}"
    dtype: str = table.dtype
    if table.error is not None:
        dtype = table.error.source_dtype
    if len(entry.shape) != 2 or entry.dtype != dtype:
        raise VerificationFailed(
            f"table {name!r} is of {dtype} [{table.rows}, {table.dim}] in the bundle, {description}"
        )
    rows, columns = entry.shape
    if not fits(layout_of(source), table.rows, table.dim, (rows, columns)):
        raise VerificationFailed(
            f"table {name!r} is [{table.rows}, {table.dim}] in the bundle, laid out as "
            f"{source.layout} in {description}, which does not fit"
        )
    return entry


def _check_digests(root: Path, name: str, table: Table) -> None:
    for segment, size in table.extents():
        with files.locate(root, segment.file).open("rb") as file:
            file.seek(segment.offset)
            actual = digest(file, size)
        # A linked segment has no checksums of blocks.
        has_other_blocks = segment.blocks and actual.blocks != segment.blocks
        if actual.crc32c != segment.crc32c or has_other_blocks:
            raise VerificationFailed(
                f"table {name!r}: segment {segment.file!r} does not match its digests in the "
                "manifest"
            )
    for segments, width in ((table.segments, table.row_bytes), (table.scales, SCALE_BYTES)):
        for segment in segments:
            if segment.deltas and _crc_with_deltas(root, segment, width) != segment.result:
                raise VerificationFailed(
                    f"table {name!r}: segment {segment.file!r} with its deltas does not match "
                    f"their result in the manifest"
                )


def _crc_with_deltas(root: Path, segment: Segment, row_bytes: int) -> int:
    """Returns the crc32c of the rows of a segment as its deltas have them."""
    mapped = MappedRows(root, [segment], row_bytes)
    step = max(1, _BLOCK_BYTES // row_bytes)
    crc = 0
    for first in range(0, segment.rows, step):
        rows = mapped.read(RowRange(first, min(step, segment.rows - first)))
        crc = extend(crc, rows)
        mapped.release()
    mapped.close()
    return crc


def _blocks(name: str, table: Table, entry: Entry, count: int, *, grouped: bool) -> Iterator[Rows]:
    """Yields the rows to be compared, as many at a time as fit into a block.

    Args:
      name: The name of the table.
      table: The table.
      entry: The table's variable.
      count: The number of rows; of a sample in groups, about as many.
      grouped: Whether a sample consists of groups of neighbors, which one request to a store reads.
    """
    step = max(1, _BLOCK_BYTES // (entry.shape[1] * entry.itemsize))
    if count == table.rows:
        # In the table's order, every block of a stack would need all of an array's chunks.
        order = None
        if entry.array is not None:
            order = _stored_order(table, entry)
        for first in range(0, table.rows, step):
            rows = np.arange(first, min(first + step, table.rows))
            if order is not None:
                rows = order.rows_at(rows)
            yield rows
        return
    if not grouped:
        yield from _sample(name, table, entry, count, min(step, _SCATTERED_ROWS))
        return
    groups = max(1, count // _GROUP_ROWS)
    groups_at_a_time = max(1, min(step, _GROUPED_ROWS) // _GROUP_ROWS)
    for firsts in _sample(name, table, entry, groups, groups_at_a_time):
        neighbors = firsts[:, np.newaxis] + np.arange(_GROUP_ROWS)
        # Groups may overlap, and the last one reaches beyond the table.
        yield np.unique(neighbors.clip(max=table.rows - 1))


def _sample(name: str, table: Table, entry: Entry, count: int, step: int) -> Iterator[Rows]:
    """Yields rows: where segments and slices begin and end, at most half of `count`; the rest at
    random.

    Rows come in the order in which the checkpoint stores them, so that a chunk is decoded once. No
    list of all rows of the table is made, nor one of all the chosen rows: a table may have 10^11
    rows, and half of them may be compared.

    Args:
      name: The name of the table.
      table: The table.
      entry: The table's variable.
      count: The number of rows to choose, fewer than the table has.
      step: The number of rows at a time.
    """
    # Seeded by the name: the same rows in every run, and others of each table.
    random = np.random.default_rng(crc32c(name.encode()))
    order = _stored_order(table, entry)
    edges = np.sort(order.ranks_of(_edges(table, entry)))
    if edges.size > count // 2:
        edges = np.sort(random.choice(edges, count // 2, replace=False))

    # The other ranks are divided into equal intervals, and one rank is drawn from each. So the
    # ranks are distinct and ascend, and only the drawn ones take memory.
    inner_count = table.rows - edges.size
    intervals = count - edges.size
    width, wider = divmod(inner_count, intervals)
    # Inner ranks are numbered without the edges: the rank itself is larger by the edges before it.
    edges_before = edges - np.arange(edges.size)
    edges_read = 0
    for first in range(0, intervals, step):
        interval = np.arange(first, min(first + step, intervals) + 1)
        # The first `wider` intervals have one rank more.
        starts = interval * width + np.minimum(interval, wider)
        inner_ranks = random.integers(starts[:-1], starts[1:])
        ranks = inner_ranks + np.searchsorted(edges_before, inner_ranks, side="right")
        yield order.rows_at(ranks)

        # Edges that lie before the end of these intervals, with the chunks that were just read.
        edges_end = int(np.searchsorted(edges, ranks[-1]))
        if first + step >= intervals:
            edges_end = edges.size
        for begin in range(edges_read, edges_end, step):
            yield order.rows_at(edges[begin : min(begin + step, edges_end)])
        edges_read = edges_end


def _stored_order(table: Table, entry: Entry) -> StoredOrder:
    """Returns the order in which rows are compared: of an array, the opposite of the copy's."""
    layout = layout_of(table.source)
    return StoredOrder(layout, table.rows, descending=entry.array is not None)


def _edges(table: Table, entry: Entry) -> Rows:
    """Returns the rows at which segments and slices begin and end, each once."""
    edges = set()
    for segment in table.segments:
        edges |= {segment.first_row, segment.first_row + segment.rows - 1}
    if table.source.layout == "plain":
        for stored_slice in entry.slices:
            first = stored_slice.starts[0]
            # The variable may have more rows than the table.
            if stored_slice.bytes and first < table.rows:
                end = min(first + stored_slice.shape[0], table.rows)
                edges |= {first, end - 1}
    else:
        # Adjacent rows lie on different lanes: the first and last rows are the ends of all lanes.
        lanes = layout_of(table.source).lanes
        first_rows = range(min(lanes, table.rows))
        last_rows = range(max(0, table.rows - lanes), table.rows)
        edges |= {*first_rows, *last_rows}
    return np.array(sorted(edges), np.int64)


def _compare(
    name: str, table: Table, rows: Rows, trained: Vectors, vectors: NDArray[np.float32]
) -> None:
    """Compares [n, dim] values of the checkpoint with those of the bundle.

    Raises:
      VerificationFailed: A row differs; names it.
    """
    if table.error is None:
        exact = trained.astype(np.float32)
        differs = exact.view(np.uint32) != vectors.view(np.uint32)
        # Any NaN equals any other: they have many representations.
        wrong = differs & ~(np.isnan(exact) & np.isnan(vectors))
        problem = "differs from the checkpoint"
    else:
        wrong = _wrongly_converted(table.dtype, trained, vectors)
        problem = f"is not what the checkpoint's becomes as {table.dtype}"
    if wrong.any():
        position, column = (int(index) for index in np.argwhere(wrong)[0])
        raise VerificationFailed(
            f"table {name!r}: row {rows[position]} {problem}, first in column {column} "
            f"({trained[position, column]:.9g}); nothing may be published; run the "
            "export again, and report it if it persists"
        )
    if table.error is not None:
        differences = np.abs(vectors - trained.astype(np.float64))
        errors = differences.max(axis=1)
        # The manifest's value was computed in float32.
        if errors.max() > table.error.max_abs * (1 + 1e-6):
            raise VerificationFailed(
                f"table {name!r}: row {rows[int(np.argmax(errors))]} differs from the checkpoint "
                f"by {errors.max():.6g}, the manifest states {table.error.max_abs:.6g} at most; "
                "export the table again"
            )


def _wrongly_converted(
    dtype: str, trained: Vectors, vectors: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Returns [n, dim]: whether a value is not the nearest that the dtype has, ties to even."""
    exact = trained.astype(np.float64)
    if dtype == "int8":
        steps = np.abs(exact).max(axis=1, keepdims=True) / 127
        return np.asarray(np.abs(vectors - exact) > steps * _HALF_STEP + _TINY)
    stored = vectors.astype(_FLOATS[dtype])
    wrong = ~np.isfinite(vectors) | (stored.astype(np.float32) != vectors)

    # A value is the nearest if neither neighbor in the dtype is nearer. Of two that are equally
    # near, the one whose last bit is 0 is right.
    bits = stored.view(np.uint32 if stored.itemsize == 4 else np.uint16)
    is_odd = bits % 2 == 1
    # The neighbor of the largest value is infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(vectors - exact)
        for end in (-np.inf, np.inf):
            neighbor = np.nextafter(stored, stored.dtype.type(end)).astype(np.float64)
            excess = error - np.abs(neighbor - exact)
            wrong |= (excess > 0) | ((excess == 0) & is_odd)
    return np.asarray(wrong)
