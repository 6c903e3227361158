"""How a bundle is divided among N shards: equal ranges of the rows of large tables, partitions of
large indexes.

Every process derives the same division from the manifest, N and the minimum size of a sharded
table; nothing is copied.
"""

from __future__ import annotations

from bundle.arithmetic import ceil_div
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.manifest import Index, Manifest, Segment, Table
from bundle.tables.segments import RowRange, overlap
from bundle.tables.shard_number import ShardNumber


def row_range(rows: int, shard: ShardNumber) -> RowRange:
    """Returns the rows of a table, or the partitions of an index, that a shard holds; none where
    there are too few.
    """
    # Rounded from the products, so that neighbors meet and sizes differ by one row at most.
    first = ceil_div(rows * (shard.number - 1), shard.total)
    end = ceil_div(rows * shard.number, shard.total)
    return RowRange(first, end - first)


def sharded_tables(manifest: Manifest, min_bytes: int) -> dict[str, Table]:
    """Returns the tables that shards hold: the tables of at least `min_bytes` bytes."""
    return {name: table for name, table in manifest.tables.items() if table.bytes >= min_bytes}


def sharded_indexes(manifest: Manifest) -> dict[str, Index]:
    """Returns the indexes that shards hold: those built in partitions."""
    return {name: index for name, index in manifest.indexes.items() if index.partitions > 1}


def table_of_rows(table: Table, wanted: RowRange) -> Table:
    """Returns a range of a table's rows as a table of its own; its checksums are of no use."""

    def trimmed(segments: tuple[Segment, ...], row_bytes: int) -> tuple[Segment, ...]:
        trimmed_segments = []
        for segment in _overlapping(segments, wanted):
            rows = RowRange(segment.first_row, segment.rows)
            shared = overlap(rows, wanted)
            skipped_rows = shared.first - segment.first_row
            fields = {
                "offset": segment.offset + skipped_rows * row_bytes,
                "first_row": shared.first - wanted.first,
                "rows": shared.rows,
                "deltas": tuple(
                    delta.model_copy(update={"skipped_rows": delta.skipped_rows + skipped_rows})
                    for delta in segment.deltas
                ),
            }
            trimmed_segments.append(segment.model_copy(update=fields))
        return tuple(trimmed_segments)

    segments = trimmed(table.segments, table.row_bytes)
    scales = trimmed(table.scales, SCALE_BYTES)
    return table.model_copy(update={"rows": wanted.rows, "segments": segments, "scales": scales})


def manifest_of_process(
    manifest: Manifest, shard: ShardNumber | None, router: bool, min_bytes: int
) -> Manifest:
    """Returns the part of a bundle that a process reads: a shard, a router of shards, or a process
    that holds everything.

    Args:
      manifest: The manifest of the whole bundle.
      shard: The number of the shard that the process is; None: it is no shard.
      router: Whether the process is a router; ignored for a shard.
      min_bytes: The size from which on a table is divided among shards.
    """
    if shard is not None:
        return manifest_of_shard(manifest, shard, min_bytes)
    if router:
        return manifest_of_router(manifest, min_bytes)
    return manifest


def manifest_of_shard(manifest: Manifest, shard: ShardNumber, min_bytes: int) -> Manifest:
    """Returns the part of a bundle that a shard reads: the files with rows of its ranges, no tower
    and no store.
    """
    tables = {}
    for name, table in sharded_tables(manifest, min_bytes).items():
        wanted = row_range(table.rows, shard)
        if wanted.rows:
            segments = _overlapping(table.segments, wanted)
            scales = _overlapping(table.scales, wanted)
            tables[name] = table.model_copy(update={"segments": segments, "scales": scales})

    # Files, and directories as prefixes of their files. Filters are read in the shard, too: it
    # returns only candidates that match.
    indexes = sharded_indexes(manifest)
    prefixes = set[str]()
    for index in indexes.values():
        partitions = row_range(index.partitions, shard)
        if partitions.rows:
            prefixes.add(index.vectors)
            prefixes |= _codes_files(index)
            for directory in index.directories[partitions.first : partitions.end]:
                prefixes.add(f"{directory}/")
            for attribute in manifest.corpora[index.corpus].filters.values():
                prefixes |= {attribute.values, attribute.rows}
    files = tuple([file for file in manifest.files if file.path.startswith(tuple(prefixes))])

    # All indexes stay: their vectors are large, and checked later than other files.
    fields: dict[str, object] = {"tables": tables, "indexes": indexes, "files": files}
    fields["warm_up"] = None
    router_fields = ("vocabularies", "keys", "features", "towers", "corpora", "contexts", "lists")
    for name in (*router_fields, "stages"):
        fields[name] = {}
    return manifest.model_copy(update=fields)


def manifest_of_router(manifest: Manifest, min_bytes: int) -> Manifest:
    """Returns the part of a bundle that a router reads: everything but what shards hold."""
    remote = sharded_tables(manifest, min_bytes)
    tables = {name: table for name, table in manifest.tables.items() if name not in remote}
    indexes = {name: index for name, index in manifest.indexes.items() if index.partitions == 1}

    # An index that is not sharded may share its vectors with one that is.
    router_vectors = {index.vectors for index in indexes.values()}
    prefixes = set[str]()
    for index in sharded_indexes(manifest).values():
        prefixes.add(f"{index.directory}/")
        prefixes |= _codes_files(index)
        if index.vectors not in router_vectors:
            prefixes.add(index.vectors)
    files = tuple([file for file in manifest.files if not file.path.startswith(tuple(prefixes))])
    return manifest.model_copy(update={"tables": tables, "indexes": indexes, "files": files})


def _overlapping(segments: tuple[Segment, ...], wanted: RowRange) -> tuple[Segment, ...]:
    """Returns the segments that hold any of the wanted rows."""
    overlapping = []
    for segment in segments:
        rows = RowRange(segment.first_row, segment.rows)
        if overlap(rows, wanted).rows:
            overlapping.append(segment)
    return tuple(overlapping)


def _codes_files(index: Index) -> set[str]:
    """Returns the files with the codes of an index, if it has some."""
    if index.codes is None:
        return set()
    return {index.codes.file, index.codes.codebook}
