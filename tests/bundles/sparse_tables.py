"""A table that is larger than the machine: its file is sparse, so that zeros take no space."""

from __future__ import annotations

from pathlib import Path

from bundle.format.manifest import EmbeddedFeature, Segment, Table, TableSource, dump
from bundle.format.paths import MANIFEST
from bundle.storage.catalog import read_manifest

NAME = "vast"
DIM = 64
BLOCK_BYTES = 4 << 20


def add_sparse_table(directory: Path, size_bytes: int) -> int:
    """Adds a table, and a feature that reads it, to a committed bundle.

    The checksums are not those of zeros: the service must run with `verify_bytes_per_s` 0.

    Args:
      directory: The directory of the bundle.
      size_bytes: The size of the table's only file.

    Returns:
      The number of rows.
    """
    manifest = read_manifest(directory)
    file = f"tables/{NAME}/rows-00000-of-00001.bin"
    (directory / file).parent.mkdir()
    with (directory / file).open("wb") as rows:
        rows.truncate(size_bytes)

    count = size_bytes // (4 * DIM)
    blocks = (0,) * (size_bytes // BLOCK_BYTES)
    segment = Segment(file=file, first_row=0, rows=count, crc32c=0, blocks=blocks)
    table = Table(
        rows=count,
        dim=DIM,
        dtype="float32",
        segments=(segment,),
        source=TableSource(layout="plain", key=f"{NAME}/values"),
    )
    feature = EmbeddedFeature(kind="single", table=NAME, role="context")
    changed = manifest.model_copy(
        update={
            "tables": {**manifest.tables, NAME: table},
            "features": {**manifest.features, NAME: feature},
        }
    )
    (directory / MANIFEST).write_bytes(dump(changed))
    return count
