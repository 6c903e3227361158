"""Key indexes of tables whose rows are found by key: written from the keys that a dump holds beside
its vectors, and checked against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, FormatError
from bundle.format import manifest, paths
from bundle.format.checksums import extend
from bundle.storage import files
from bundle.storage.staging import Staging
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from export.checkpoint.datafiles import changed, check_unchanged, stamps_of
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError, VerificationFailed
from export.steps import Step
from export.tables.dumped import BLOCK_KEYS, KeyFile

Stored = NDArray[Any]
"""Keys in the dtype of their file."""


def write_key_indexes(
    checkpoint: Checkpoint, tables: Iterable[TableSpec], stage: Staging
) -> dict[str, manifest.KeyIndex]:
    """Writes the index of every table that has keys, but for those that an earlier run finished.

    Args:
      checkpoint: The checkpoint that holds the keys.
      tables: The tables that are exported.
      stage: The staging directory in which the indexes are written.
    Returns:
      The manifest entries of the indexes, by the table's name.
    Raises:
      CheckpointError: A key comes twice, or is no int64 from 0 on; the error names it.
    """
    indexes = {}
    for table in tables:
        if not table.keys:
            continue
        file = paths.key_index(table.name)
        # The storage keeps no checksum of the keys, so that a first pass computes one.
        content_crc = 0
        for _, keys in _blocks(checkpoint, table):
            content_crc = extend(content_crc, keys)
        Step(file).run(stage, _write_index, _DumpedKeys(checkpoint, table, content_crc))
        indexes[table.name] = manifest.KeyIndex(file=file, size=table.rows)
    return indexes


@dataclass(frozen=True)
class _DumpedKeys:
    """The keys of a table.

    Attributes:
      checkpoint: The checkpoint that holds them.
      table: The table.
      content_crc: The crc32c of the keys as they are stored.
    """

    checkpoint: Checkpoint
    table: TableSpec
    content_crc: int

    def key_parts(self) -> Any:
        """Returns what decides the index."""
        dtype = self.checkpoint.entries[self.table.keys].dtype
        return [self.table.rows, dtype, self.content_crc]


def _blocks(checkpoint: Checkpoint, table: TableSpec) -> Iterator[tuple[int, Stored]]:
    """Yields the first row and the keys, as they are stored, of each block."""
    for first in range(0, table.rows, BLOCK_KEYS):
        yield first, checkpoint.read(table.keys, first, min(BLOCK_KEYS, table.rows - first))


def _write_index(base: Path, dumped: _DumpedKeys) -> None:
    """Writes the index of a table."""
    table = dumped.table
    entry = dumped.checkpoint.entries[table.keys]
    read_crc = 0
    with KeyIndexWriter(base / paths.key_index(table.name)) as index:
        for first, keys in _blocks(dumped.checkpoint, table):
            # A uint64 key above 2^63 - 1 is negative as an int64.
            signed_keys = keys
            if keys.dtype.itemsize == 8:
                signed_keys = keys.view(np.int64)
            is_negative = signed_keys < 0
            if is_negative.any():
                position = int(np.argmax(is_negative))
                raise CheckpointError(
                    f"table {table.name!r}: the key of row {first + position} in {table.keys!r} is "
                    f"{keys[position]}; ids are integers from 0 to 2^63 - 1: map them to such "
                    "before training"
                )
            read_crc = extend(read_crc, keys)
            index.append(keys.astype(np.int64))
        # The index is keyed by the content that was read before: the file must still hold it.
        check_unchanged(stamps_of(entry.slices))
        if read_crc != dumped.content_crc:
            raise changed(entry.slices[0].file)
        try:
            index.finish()
        except FormatError as problem:
            raise CheckpointError(
                f"table {table.name!r}: {table.keys!r}: {problem}; dump it anew"
            ) from problem


def check_key_indexes(
    checkpoint: Checkpoint,
    root: Path,
    tables: Mapping[str, manifest.Table],
    keys: Mapping[str, manifest.KeyIndex],
    full: bool = False,
) -> None:
    """Looks keys of the dump up in a bundle's indexes, as a service does: a sample from all over
    the dump, or all keys.

    Raises:
      VerificationFailed: A key leads to another row than that of its vector.
    """
    for name, index in keys.items():
        dumped = checkpoint.storage.dumped.get(tables[name].source.key)
        if dumped is None:
            raise VerificationFailed(
                f"table {name!r} is found by keys, which checkpoint {checkpoint.prefix} does not "
                "have; compare with the dump, or with the recipe that names it"
            )
        file = KeyFile(dumped)
        if index.size != file.size:
            raise VerificationFailed(
                f"table {name!r}: its key index holds {index.size} keys, the dump {file.size}"
            )
        try:
            _check_index(name, files.locate(root, index.file), file, full)
        except BundleError as problem:
            raise VerificationFailed(str(problem)) from problem


def _check_index(name: str, index: Path, file: KeyFile, full: bool) -> None:
    key_index = KeyIndex(index, file.size)
    blocks = file.blocks() if full else file.sampled_blocks()
    for first, keys in blocks:
        rows = key_index.find(keys)
        is_wrong = rows != np.arange(first, first + keys.size)
        if is_wrong.any():
            position = int(np.argmax(is_wrong))
            raise VerificationFailed(
                f"table {name!r}: key {keys[position]} of the dump is row {first + position} there "
                f"and row {rows[position]} by the bundle's index; nothing may be published; run "
                "the export again, and report it if it persists"
            )
