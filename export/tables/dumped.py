"""Tables of a recipe that a parameter server dumped (`tables.NAME.dump`): their vectors and keys
beside the checkpoint.

Their rows are found by key, so a model's own number of rows says nothing about the tables; the
reference model is called with the keys themselves, which are looked up here in the dump's file, not
in a bundle's index.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.checksums import crc32c
from export.checkpoint.formats.dumps import list_dump
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, DumpedTable, Entry, Listing
from export.errors import CheckpointError, UsageError
from export.locations import location_of

if TYPE_CHECKING:
    from export.recipe.schema import ExportJob

BLOCK_KEYS = 1 << 20
"""The number of keys that are read at a time: 8 MiB at most."""
SAMPLED_BLOCKS = 16
SAMPLED_KEYS = 256
"""The number of blocks, and of keys in each, that represent all keys of a file."""

Keys = NDArray[np.int64]


def open_dumps(job: ExportJob, base: Path) -> dict[str, DumpedTable]:
    """Returns the dumped tables of a recipe by their names in the bundle.

    Raises:
      UsageError: A dump is not on this machine, or does not have the table; the error lists the
        tables that it has.
      CheckpointError: A dump is damaged.
    """
    dumped_tables = {}
    for name, section in job.tables.items():
        if section.dump is None:
            continue
        directory = location_of(section.dump, base)
        if not isinstance(directory, Path):
            raise UsageError(
                f"tables.{name}.dump: {directory} is a URL; bring the dump to a disk of this "
                "machine"
            )
        if not directory.is_dir():
            raise UsageError(f"tables.{name}.dump: {directory} is not a directory")
        try:
            tables = {table.name: table for table in list_dump(directory).storage.dumped.values()}
        except OSError as problem:
            raise CheckpointError(
                f"dump {directory} cannot be read: {problem.strerror}"
            ) from problem
        dumped_tables[name] = _choose_table(name, section.key, tables, directory)
    return dumped_tables


def _choose_table(
    name: str, key: str | None, tables: Mapping[str, DumpedTable], directory: Path
) -> DumpedTable:
    """Returns the table that the recipe names, else the one of the same name (SOK adds a number),
    else the only one.
    """
    candidates = [name, f"{name}_0"]
    if key is not None:
        candidates = [key]
    for candidate in candidates:
        if candidate in tables:
            return tables[candidate]
    if key is None and len(tables) == 1:
        return next(iter(tables.values()))
    matches = difflib.get_close_matches(key or name, tables, n=1)
    hint = f"it has {', '.join(tables)}"
    if matches:
        hint = f"did you mean {matches[0]!r}?"
    raise UsageError(
        f"tables.{name}: dump {directory} has no table {key or name!r}; {hint} (tables.{name}.key "
        "names it)"
    )


def with_dumps(checkpoint: Checkpoint, dumps: Mapping[str, DumpedTable]) -> Checkpoint:
    """Returns a checkpoint that holds dumped tables, too, under keys that name the table of the
    recipe.
    """
    if not dumps:
        return checkpoint
    prefixed_tables = {name: _add_prefix(name, dumped) for name, dumped in dumps.items()}
    entries = {entry.key: entry for dumped in prefixed_tables.values() for entry in dumped.entries}
    # The fingerprint of the checkpoint covers its own files alone, and another dump beside it is
    # another source.
    stamps = "".join(f"{entry.key} {entry.slices[0].stamp}\n" for entry in entries.values())
    dumped_by_key = {dumped.vectors.key: dumped for dumped in prefixed_tables.values()}
    listing = Listing(
        f"{checkpoint.fingerprint}+crc32c:{crc32c(stamps.encode()):08x}",
        {**checkpoint.entries, **entries},
        replace(checkpoint.storage, dumped=dumped_by_key),
    )
    return Checkpoint(checkpoint.prefix, listing, checkpoint.name)


def stated_key(checkpoint: Checkpoint, name: str, job: ExportJob) -> str | None:
    """Returns the key of the variable that a recipe states for a table; None if it states none.

    Args:
      checkpoint: The checkpoint with the recipe's dumps, where the table's vectors have it.
      name: The name of the table.
      job: The recipe.
    """
    for key in checkpoint.storage.dumped:
        if key.startswith(_prefix(name)):
            return key
    section = job.tables.get(name)
    return None if section is None else section.key


def _add_prefix(name: str, dumped: DumpedTable) -> DumpedTable:
    def with_prefix(entry: Entry) -> Entry:
        return entry._replace(key=_prefix(name) + entry.key)

    return replace(
        dumped,
        name=name,
        vectors=with_prefix(dumped.vectors),
        keys=with_prefix(dumped.keys),
        slots={slot: with_prefix(entry) for slot, entry in dumped.slots.items()},
    )


def _prefix(name: str) -> str:
    return f"tables.{name}.dump/"


class KeyFile:
    """The keys of a dumped table, read from its file again and again. Memory holds only the keys
    that were looked up.
    """

    def __init__(self, dumped: DumpedTable) -> None:
        """Takes the table; opens nothing."""
        (self._part,) = dumped.keys.slices
        self._dtype = NUMPY_DTYPES[dumped.keys.dtype]
        self.size = dumped.keys.shape[0]
        # The keys that were looked up, ascending, and the row of each: the reference model looks
        # the same keys up for each output.
        self._known_keys = np.empty(0, np.int64)
        self._rows = np.empty(0, np.int64)

    def blocks(self) -> Iterator[tuple[int, Keys]]:
        """Yields the first row and the keys of each block."""
        for first in range(0, self.size, BLOCK_KEYS):
            yield first, self.read(first, min(BLOCK_KEYS, self.size - first))

    def read(self, first: int, count: int) -> Keys:
        """Returns the keys of [count] rows.

        Raises:
          CheckpointError: The file cannot be read, or is shorter than it was.
        """
        offset = self._part.offset + first * self._dtype.itemsize
        try:
            keys: NDArray[Any] = np.fromfile(self._part.file, self._dtype, count, offset=offset)
        except OSError as problem:
            raise CheckpointError(
                f"dump file {self._part.file} cannot be read: {problem.strerror}"
            ) from problem
        if keys.size != count:
            raise CheckpointError(
                f"dump file {self._part.file} was cut short while it was read; copy it anew"
            )
        return keys.astype(np.int64)

    def sampled_blocks(self) -> Iterator[tuple[int, Keys]]:
        """Yields the first row and the keys of short blocks from all over the file, so few that
        reading them takes no time.
        """
        count = min(SAMPLED_KEYS, self.size)
        firsts = np.linspace(0, self.size - count, SAMPLED_BLOCKS).astype(np.int64)
        # In a short file, several blocks begin at the same row.
        for first in np.unique(firsts).tolist():
            yield first, self.read(first, count)

    def sample(self) -> Keys:
        """Returns keys from all over the file."""
        return np.unique(np.concatenate([keys for _, keys in self.sampled_blocks()]))

    def of(self, rows: NDArray[np.int64]) -> Keys:
        """Returns the keys of single rows."""
        blocks = [self.read(int(row), 1) for row in rows]
        if not blocks:
            return np.empty(0, np.int64)
        return np.concatenate(blocks)

    def rows(self, keys: Keys) -> NDArray[np.int64]:
        """Returns the row of each key, -1 where there is none, by going through the file once."""
        distinct_keys = np.unique(keys)
        new_keys = distinct_keys[~np.isin(distinct_keys, self._known_keys)]
        if new_keys.size:
            # Keys without a row are kept, too, so that the file is not searched for them again.
            rows = np.full(new_keys.size, -1, np.int64)
            for first, block in self.blocks():
                # A key above all requested ones has the position past their end.
                positions = np.minimum(np.searchsorted(new_keys, block), new_keys.size - 1)
                matches = np.flatnonzero(new_keys[positions] == block)
                rows[positions[matches]] = first + matches
            known_keys = np.concatenate([self._known_keys, new_keys])
            order = np.argsort(known_keys)
            self._known_keys = known_keys[order]
            self._rows = np.concatenate([self._rows, rows])[order]
        return self._rows[np.searchsorted(self._known_keys, keys)]
