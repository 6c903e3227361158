"""Versions that share the rows of the version before, but for a delta of some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.dtypes import SCALE_BYTES
from bundle.format.manifest import Manifest, dump
from bundle.format.tables import Segment, Table
from bundle.storage import catalog
from bundle.tables.maps import MappedRows
from bundle.tables.segments import RowRange
from tests.bundles.deltas import with_delta


def write_next_version(bundle: Path, share: float, seed: int, table: str = "t") -> Path:
    """Writes the version after one: hard links to all files, and a delta of each segment of one
    table.

    Args:
      bundle: The directory of the version.
      share: The share of the rows that change, anywhere.
      seed: Other seeds change other rows.
      table: The name of the table.

    Returns:
      The directory of the new version.
    """
    generator = np.random.default_rng(seed)
    older = catalog.read_manifest(bundle)
    version = older.version + 1
    target = bundle.parent / str(version)
    for file in sorted(bundle.rglob("*")):
        if file.is_file() and file.name != paths.MANIFEST:
            link = target / file.relative_to(bundle)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(file)
    entry = older.tables[table]
    changed = {}
    for part, segments, row_bytes in (
        ("segments", entry.segments, entry.row_bytes),
        ("scales", entry.scales, SCALE_BYTES),
    ):
        changed[part] = tuple(
            _changed(target, segment, row_bytes, share, generator) for segment in segments
        )
    tables = dict(older.tables) | {table: entry.model_copy(update=changed)}
    manifest = older.model_copy(update={"version": version, "tables": tables})
    write_manifest(target, manifest)
    return target


def _changed(
    root: Path, segment: Segment, row_bytes: int, share: float, generator: np.random.Generator
) -> Segment:
    """Writes a delta of rows whose bytes are changed; returns the segment with it."""
    content = MappedRows(root, [segment], row_bytes).read(RowRange(0, segment.rows))
    count = max(1, int(segment.rows * share))
    rows = np.sort(generator.choice(segment.rows, count, replace=False))
    # Another number of the same exponent: no row becomes NaN.
    content[rows, 0] ^= 1
    content[rows, 1] ^= generator.integers(0, 256, count).astype(np.uint8)
    return with_delta(root, segment, rows, content[rows], crc32c(content))


def write_manifest(bundle: Path, manifest: Manifest) -> None:
    """Writes the manifest of a bundle."""
    (bundle / paths.MANIFEST).write_bytes(dump(Manifest.model_validate(manifest.model_dump())))


def rows_of(bundle: Path, table: str = "t") -> NDArray[np.uint8]:
    """Returns all rows of a table as they are stored."""
    entry = catalog.read_manifest(bundle).tables[table]
    return stored_rows(bundle, entry)


def stored_rows(root: Path, entry: Table) -> NDArray[np.uint8]:
    """Returns all rows of a table as they are stored."""
    mapped = MappedRows(root, entry.segments, entry.row_bytes)
    return mapped.read(RowRange(0, entry.rows))
