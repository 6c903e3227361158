"""Bundles whose tables are read through deltas, with the rows that they had before."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from benchmarks.workload_files import WorkloadFiles
from bundle.format import paths
from bundle.format.manifest import Manifest, dump
from bundle.format.tables import Delta, Segment
from bundle.storage.catalog import read_manifest
from bundle.tables.maps import MappedRows
from bundle.tables.row_deltas import RANGE_ROWS, DeltaWriter
from bundle.tables.segments import RowRange

SHARE = 0.02
"""The share of the rows that each delta has, anywhere in the table."""


def with_deltas(written: WorkloadFiles, root: Path, deltas: int) -> WorkloadFiles:
    """Copies workloads, with deltas for each segment of their tables.

    The rows of a delta have the values that they had, so that requests get the same results.

    Args:
      written: The workloads; their files become hard links.
      root: The directory of the copies.
      deltas: The number of deltas of each segment.
    """
    shutil.copytree(
        written.root, root, copy_function=lambda source, copy: Path(copy).hardlink_to(source)
    )
    for file in root.glob(f"*/*/{paths.MANIFEST}"):
        manifest = _with_deltas(file.parent, read_manifest(file.parent), deltas)
        file.unlink()
        file.write_bytes(dump(manifest))
    return WorkloadFiles(root, written.bodies)


def _with_deltas(directory: Path, manifest: Manifest, deltas: int) -> Manifest:
    random = np.random.default_rng(7)
    tables = {}
    for name, table in manifest.tables.items():
        segments = tuple(
            _segment_with_deltas(directory, segment, table.row_bytes, deltas, random)
            for segment in table.segments
        )
        tables[name] = table.model_copy(update={"segments": segments})
    return manifest.model_copy(update={"tables": tables})


def _segment_with_deltas(
    directory: Path, segment: Segment, row_bytes: int, count: int, random: np.random.Generator
) -> Segment:
    mapped = MappedRows(directory, [segment], row_bytes)
    deltas: tuple[Delta, ...] = ()
    for number in range(1, count + 1):
        file = paths.delta(segment.file, number)
        with DeltaWriter(directory / file, row_bytes, segment.rows, segment.crc32c) as writer:
            for first in range(0, segment.rows, RANGE_ROWS):
                size = min(RANGE_ROWS, segment.rows - first)
                is_changed = random.random(size) < SHARE
                is_changed[0] = True  # a delta has a row at least
                (rows,) = is_changed.nonzero()
                writer.add(first + rows, mapped.read(RowRange(first, size))[rows])
            digest = writer.close(segment.crc32c)
        deltas += (
            Delta(
                file=file,
                rows=writer.rows,
                bytes=digest.bytes,
                crc32c=digest.crc32c,
                blocks=digest.blocks,
                result=segment.crc32c,
            ),
        )
    return segment.model_copy(update={"deltas": deltas})
