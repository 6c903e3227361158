"""The judge of table rows: reads checkpoint and bundle anew and compares them bit for bit.

It shares nothing with what wrote the shards: rows of the checkpoint come through `Checkpoint.read`, rows of the bundle
by plain reads at the places that the manifest tells. Layouts are written out here once more, row by row from the
manifest's own parameters; and where the writer deals lanes back into rows, the judge goes through the variable from its
first row to its last and asks of each row which one of the table it is.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bundle import files
from bundle.checksums import Digest, crc32c
from bundle.codecs import SCALE_BYTES
from bundle.errors import BundleError
from bundle.manifest import Shard, Table, TableCheck, TableSource
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, Entry
from export.errors import VerificationFailed
from export.verify.conversion_checks import judged

BLOCK_BYTES = 8 << 20
SAMPLE_ROWS = 4096

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Scales = np.ndarray[Any, np.dtype[np.float32]]


def verify_tables(
    checkpoint: Checkpoint, root: Path, tables: Mapping[str, Table], rows: int | None = SAMPLE_ROWS
) -> dict[str, TableCheck]:
    """Compares tables of a bundle with the checkpoint they came from: bit for bit, or as `judged` where converted.

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
    _check_shape(name, table, entry, checkpoint)
    row_bytes = table.dim * NUMPY_DTYPES[table.dtype].itemsize
    plain = table.source.layout == "plain"
    if rows is None or rows >= table.rows:
        if not plain:
            _compare_stack(checkpoint, root, name, table)
        for shard in table.shards:
            _compare_shard(checkpoint if plain else None, root, name, table, shard)
        for shard in table.scales:
            _check_digests(root, name, shard, SCALE_BYTES)
        return TableCheck(rows_compared=table.rows, rows=table.rows)
    sample = _sample(name, table, entry, rows)
    stretches = _runs(sample, max(1, BLOCK_BYTES // row_bytes) if plain else 1)
    # In the order of the variable: where it lies in chunks, each is decoded once.
    ordered = sorted(stretches, key=lambda each: _stored_row(table.source, each[0]))
    stored = checkpoint.read_each(entry.key, [(_stored_row(table.source, first), n) for first, n in ordered])
    batch = max(1, BLOCK_BYTES // (entry.shape[1] * entry.itemsize))
    for some in _batches(ordered, batch):
        numbers = np.concatenate([np.arange(first, first + count) for first, count in some])
        _compare_with_bundle(root, name, table, numbers, np.concatenate(list(islice(stored, len(some)))))
    return TableCheck(rows_compared=len(sample), rows=table.rows)


def _check_shape(name: str, table: Table, entry: Entry, checkpoint: Checkpoint) -> None:
    source, told = table.source, f"{entry.dtype} {list(entry.shape)} in checkpoint {checkpoint.prefix}"
    dtype = table.dtype if table.error is None else table.error.source_dtype
    if len(entry.shape) != 2 or entry.dtype != dtype:
        raise VerificationFailed(f"table {name!r} is of {dtype} [{table.rows}, {table.dim}] in the bundle, {told}")
    fits = entry.shape == (table.rows, table.dim)
    if source.layout == "mod":
        fits = entry.shape == (table.rows, table.dim) and source.starts is not None and 0 in source.starts
    elif source.layout == "sparse_core":
        cores, core_rows, offset, _ = _stack(source)
        fits = (
            entry.shape[0] == cores * core_rows
            and entry.shape[1] >= table.dim
            and offset + -(-table.rows // cores) <= core_rows
        )
    if not fits:
        raise VerificationFailed(
            f"table {name!r} is [{table.rows}, {table.dim}] in the bundle, laid out as {source.layout} in {told}, "
            "which does not fit"
        )


def _stack(source: TableSource) -> tuple[int, int, int, int]:
    """Returns sparse cores, rows of each, the table's first row in each, and rotation."""
    assert source.cores and source.core_rows and source.offset is not None and source.rotation is not None  # noqa: S101, PT018
    return source.cores, source.core_rows, source.offset, source.rotation


def _stored_row(source: TableSource, row: int) -> int:
    """Returns the row of the variable that holds a row of the table."""
    if source.layout == "sparse_core":
        cores, core_rows, offset, rotation = _stack(source)
        return (row + rotation) % cores * core_rows + offset + row // cores
    if source.layout == "mod" and source.starts:
        return source.starts[row % len(source.starts)] + row // len(source.starts)
    return row


def _rows_of(source: TableSource, stored: Integers) -> Integers:
    """Returns the row of the table that each row of the variable would be; what is beyond the table is padding."""
    if source.layout == "sparse_core":
        cores, core_rows, offset, rotation = _stack(source)
        place = stored % core_rows - offset
        return np.where(place < 0, np.iinfo(np.int64).max, place * cores + (stored // core_rows - rotation) % cores)
    starts = np.array(source.starts, np.int64)
    partition = np.searchsorted(starts, stored, side="right") - 1
    return (stored - starts[partition]) * len(starts) + partition


def _compare_stack(checkpoint: Checkpoint, root: Path, name: str, table: Table) -> None:
    """Goes through the variable from front to back; every row of the table must turn up once, with its values."""
    entry = checkpoint.entries[table.source.key]
    step, seen = max(1, BLOCK_BYTES // (entry.shape[1] * entry.itemsize)), 0
    for first in range(0, entry.shape[0], step):
        stored = np.arange(first, min(first + step, entry.shape[0]), dtype=np.int64)
        rows = _rows_of(table.source, stored)
        here = np.flatnonzero(rows < table.rows)
        if not here.size:
            continue
        _compare_with_bundle(root, name, table, rows[here], checkpoint.read(entry.key, first, len(stored))[here])
        seen += len(here)
    if seen != table.rows:
        raise VerificationFailed(f"table {name!r}: its variable holds {seen} rows of it, the bundle {table.rows}")


def _compare_with_bundle(root: Path, name: str, table: Table, rows: Integers, trained: np.ndarray[Any, Any]) -> None:
    """Reads rows of the bundle, in any order, and compares them with [n, dim or more] of the checkpoint."""
    written = np.empty((len(rows), table.dim * NUMPY_DTYPES[table.dtype].itemsize), np.uint8)
    order = np.argsort(rows)
    for low, high, shard in _by_shard(rows[order], table.shards):
        _read_rows(root, shard, rows[order[low:high]], written, order[low:high])
    _compare_rows(root, name, table, rows, trained[:, : table.dim], written)


def _by_shard(rows: Integers, shards: Sequence[Shard]) -> Iterator[tuple[int, int, Shard]]:
    """Yields the stretches of ascending rows that lie in one shard: first, end, shard."""
    low = 0
    while low < len(rows):
        shard = shards[bisect_right(shards, int(rows[low]), key=lambda each: each.first_row) - 1]
        high = int(np.searchsorted(rows, shard.first_row + shard.rows))
        yield low, high, shard
        low = high


def _read_rows(root: Path, shard: Shard, rows: Integers, written: Bytes, places: Integers) -> None:
    """Reads single rows of a shard into the given places of [n, row_bytes]."""
    row_bytes = written.shape[1]
    try:
        with files.locate(root, shard.file).open("rb", buffering=0) as file:
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                at = shard.offset + (row - shard.first_row) * row_bytes
                if os.preadv(file.fileno(), [written[place].data], at) != row_bytes:
                    raise VerificationFailed(f"shard {shard.file!r} ends within row {row}: it was cut short")
    except (BundleError, OSError) as problem:
        raise VerificationFailed(f"shard {shard.file!r} cannot be read: {problem}") from problem


def _compare_shard(checkpoint: Checkpoint | None, root: Path, name: str, table: Table, shard: Shard) -> None:
    """Compares a shard's bytes with its digests, and with the checkpoint if that is given."""

    def compare(first: int, written: Bytes) -> None:
        if checkpoint is not None:
            trained = checkpoint.read(table.source.key, first, len(written))
            _compare_rows(root, name, table, np.arange(first, first + len(written)), trained, written)

    _check_digests(root, name, shard, table.dim * NUMPY_DTYPES[table.dtype].itemsize, compare)


def _check_digests(
    root: Path, name: str, shard: Shard, row_bytes: int, seen: Callable[[int, Bytes], None] = lambda _first, _rows: None
) -> None:
    """Compares a shard's bytes with its digests; `seen` takes each block of rows, and the first of them."""
    step, path = max(1, BLOCK_BYTES // row_bytes), _locate(root, shard.file)
    digest = Digest()
    for first in range(shard.first_row, shard.first_row + shard.rows, step):
        written = _read_shard(path, shard, first, min(step, shard.first_row + shard.rows - first), row_bytes)
        seen(first, written)
        digest.update(written)
    if digest.crc32c != shard.crc32c or (shard.blocks and digest.blocks != shard.blocks):  # a linked shard has none
        raise VerificationFailed(f"table {name!r}: shard {shard.file!r} does not match its digests in the manifest")


def _locate(root: Path, file: str) -> Path:
    """Returns where a shard's file is, which takes longer than to read a row of it."""
    try:
        return files.locate(root, file)
    except BundleError as problem:
        raise VerificationFailed(f"shard {file!r} cannot be read: {problem}") from problem


def _read_shard(path: Path, shard: Shard, first: int, count: int, row_bytes: int) -> Bytes:
    """Reads [count, row_bytes] of a shard by the manifest alone."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(shard.offset + (first - shard.first_row) * row_bytes)
            data = file.read(count * row_bytes) or b""
    except OSError as problem:
        raise VerificationFailed(f"shard {shard.file!r} cannot be read: {problem}") from problem
    if len(data) != count * row_bytes:
        raise VerificationFailed(
            f"shard {shard.file!r} ends within row {first + len(data) // row_bytes}: it was cut short"
        )
    return np.frombuffer(data, np.uint8).reshape(count, row_bytes)


def _compare_rows(
    root: Path, name: str, table: Table, rows: Integers, trained: np.ndarray[Any, Any], written: Bytes
) -> None:
    if table.error is not None:
        _compare_converted(name, table, rows, trained, written, _read_scales(root, table, rows))
        return
    stored = np.ascontiguousarray(trained).view(np.uint8).reshape(written.shape)
    if not np.array_equal(stored, written):
        row = int(np.argmax((stored != written).any(axis=1)))
        column = int(np.argmax(stored[row] != written[row])) // trained.itemsize
        raise VerificationFailed(
            f"table {name!r}: row {rows[row]} differs from the checkpoint, first in column {column}; nothing may be "
            "published; run the export again, and report it if it persists"
        )


def _compare_converted(
    name: str, table: Table, rows: Integers, trained: np.ndarray[Any, Any], written: Bytes, scales: Scales | None
) -> None:
    assert table.error is not None  # noqa: S101
    wrong, apart = judged(table.dtype, trained, written, scales)
    if wrong.any():
        row, column = (int(each[0]) for each in np.nonzero(wrong))
        raise VerificationFailed(
            f"table {name!r}: row {rows[row]} is not what the checkpoint's becomes as {table.dtype}, first in column "
            f"{column} ({trained[row, column]:.9g}); nothing may be published; run the export again, and report it if "
            "it persists"
        )
    furthest = apart.max(axis=1)
    if furthest.max() > table.error.max_abs * (1 + 1e-6):
        raise VerificationFailed(
            f"table {name!r}: row {rows[int(np.argmax(furthest))]} lies {furthest.max():.6g} from the checkpoint, the "
            f"manifest tells {table.error.max_abs:.6g} at most; export the table again"
        )


def _read_scales(root: Path, table: Table, rows: Integers) -> Scales | None:
    """Reads the scales of rows, in any order; None where the table has none."""
    if not table.scales:
        return None
    scales = np.empty((len(rows), SCALE_BYTES), np.uint8)
    order = np.argsort(rows)
    for low, high, shard in _by_shard(rows[order], table.scales):
        here = rows[order[low:high]]
        if here[-1] - here[0] + 1 == len(here):
            scales[order[low:high]] = _read_shard(
                _locate(root, shard.file), shard, int(here[0]), len(here), SCALE_BYTES
            )
        else:
            _read_rows(root, shard, here, scales, order[low:high])
    return scales.view("<f4")[:, 0]


def _sample(name: str, table: Table, entry: Entry, count: int) -> list[int]:
    """Chooses rows: where shards and slices begin and end, at most half of `count`; the rest at random."""
    edges = {row for shard in table.shards for row in (shard.first_row, shard.first_row + shard.rows - 1)}
    ends = [row for part in entry.slices if part.bytes for row in (part.starts[0], part.starts[0] + part.shape[0] - 1)]
    if table.source.layout != "plain":
        ends = _rows_of(table.source, np.array(ends, np.int64)).tolist()
    edges |= {row for row in ends if row < table.rows}
    random = np.random.default_rng(crc32c(name.encode()))
    chosen = sorted(edges)
    if len(chosen) > count // 2:
        chosen = [int(row) for row in random.choice(chosen, count // 2, replace=False)]
    sample = set(chosen)
    for row in random.choice(table.rows, count, replace=False):
        if len(sample) < count:
            sample.add(int(row))
    return sorted(sample)


def _batches(stretches: list[tuple[int, int]], longest: int) -> Iterator[list[tuple[int, int]]]:
    """Yields stretches that have `longest` rows together, or the last of them more."""
    some, rows = [], 0
    for each in stretches:
        some.append(each)
        rows += each[1]
        if rows >= longest:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _runs(rows: list[int], longest: int) -> Iterator[tuple[int, int]]:
    """Yields first row and length of stretches of neighbouring rows."""
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1 or place - start == longest:
            yield rows[start], place - start
            start = place
