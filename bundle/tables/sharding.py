"""How a bundle is divided among N shards: equal ranges of the rows of large tables, partitions of
large indexes.

Every process derives the same division from the manifest, N and the least size of a sharded table;
nothing is copied.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bundle.format.dtypes import SCALE_BYTES
from bundle.format.manifest import Index, Manifest, Segment, Table
from bundle.tables.segments import RowRange, overlap

_SPELLED = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", re.ASCII)


class ShardNumber(NamedTuple):
    """Shard `number` of `total`, from 1."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @classmethod
    def parse(cls, text: str) -> ShardNumber:
        """Reads what `str` gives.

        Raises:
          ValueError: the text is no such number.
        """
        spelled = _SPELLED.fullmatch(text)
        if spelled is None or int(spelled[1]) > int(spelled[2]):
            raise ValueError(
                f"{text!r} is no shard; a number and how many there are, such as 1/4, were expected"
            )
        return cls(int(spelled[1]), int(spelled[2]))


def row_range(rows: int, shard: ShardNumber) -> RowRange:
    """Returns the rows of a table, or the partitions of an index, that a shard holds; none where
    there are too few.
    """
    first, end = (-(-rows * each // shard.total) for each in (shard.number - 1, shard.number))
    return RowRange(first, end - first)


def sharded_tables(manifest: Manifest, min_bytes: int) -> dict[str, Table]:
    """Returns the tables that shards hold: those of at least so many bytes."""
    return {name: table for name, table in manifest.tables.items() if table.bytes >= min_bytes}


def sharded_indexes(manifest: Manifest) -> dict[str, Index]:
    """Returns the indexes that shards hold: those built in partitions."""
    return {name: index for name, index in manifest.indexes.items() if index.partitions > 1}


def of_rows(table: Table, wanted: RowRange) -> Table:
    """Returns a range of a table's rows as a table of its own; its checksums are of no use."""

    def trimmed(segments: tuple[Segment, ...], row_bytes: int) -> tuple[Segment, ...]:
        found = []
        for each in _overlapping(segments, wanted):
            part = overlap(RowRange(each.first_row, each.rows), wanted)
            offset = each.offset + (part.first - each.first_row) * row_bytes
            place = {"offset": offset, "first_row": part.first - wanted.first, "rows": part.rows}
            found.append(each.model_copy(update=place))
        return tuple(found)

    segments = trimmed(table.segments, table.row_bytes)
    scales = trimmed(table.scales, SCALE_BYTES)
    return table.model_copy(update={"rows": wanted.rows, "segments": segments, "scales": scales})


def held_here(
    manifest: Manifest, shard: ShardNumber | None, router: bool, min_bytes: int
) -> Manifest:
    """Returns what of a bundle a process reads: a shard, a router of shards, or one that holds
    everything.
    """
    if shard is not None:
        return held_by_shard(manifest, shard, min_bytes)
    return held_by_router(manifest, min_bytes) if router else manifest


def held_by_shard(manifest: Manifest, shard: ShardNumber, min_bytes: int) -> Manifest:
    """Returns what of a bundle a shard reads: the files with rows of its ranges, no tower and no
    store.
    """
    held: dict[str, object] = {}
    for kind in ("vocabularies", "keys", "features", "towers", "corpora", "contexts"):
        held[kind] = {}
    tables = {}
    for name, table in sharded_tables(manifest, min_bytes).items():
        wanted = row_range(table.rows, shard)
        kept = {
            "segments": _overlapping(table.segments, wanted),
            "scales": _overlapping(table.scales, wanted),
        }
        if wanted.rows:
            tables[name] = table.model_copy(update=kept)
    indexes = sharded_indexes(manifest)
    read = set[str]()
    for index in indexes.values():
        parts = row_range(index.partitions, shard)
        if parts.rows:
            filters = manifest.corpora[index.corpus].filters.values()
            read |= {
                index.vectors,
                *(file for each in filters for file in (each.values, each.rows)),
            }
            read |= {f"{directory}/" for directory in index.directories[parts.first : parts.end]}
            read |= _codes_files(index)
    files = tuple(file for file in manifest.files if file.path.startswith(tuple(read)))
    # All indexes: their vectors are large, and checked later than other files.
    return manifest.model_copy(update=held | {"tables": tables, "indexes": indexes, "files": files})


def held_by_router(manifest: Manifest, min_bytes: int) -> Manifest:
    """Returns what of a bundle a router reads: everything but what shards hold."""
    remote = sharded_tables(manifest, min_bytes)
    indexes = sharded_indexes(manifest).values()
    # An index that is not sharded may share its vectors with one that is.
    kept = {index.vectors for index in manifest.indexes.values() if index.partitions == 1}
    elsewhere = tuple(
        {index.vectors for index in indexes} - kept
        | {f"{index.directory}/" for index in indexes}
        | {file for index in indexes for file in _codes_files(index)}
    )
    return manifest.model_copy(
        update={
            "tables": {
                name: table for name, table in manifest.tables.items() if name not in remote
            },
            "indexes": {
                name: index for name, index in manifest.indexes.items() if index.partitions == 1
            },
            "files": tuple(file for file in manifest.files if not file.path.startswith(elsewhere)),
        }
    )


def _overlapping(segments: tuple[Segment, ...], wanted: RowRange) -> tuple[Segment, ...]:
    """Returns the segments that hold any of the wanted rows."""
    return tuple(
        each for each in segments if overlap(RowRange(each.first_row, each.rows), wanted).rows
    )


def _codes_files(index: Index) -> set[str]:
    return set() if index.codes is None else {index.codes.file, index.codes.codebook}
