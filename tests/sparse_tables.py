"""Bundles with a table larger than the machine: its file is sparse, all of its rows are zeros, and takes no space."""

from __future__ import annotations

from pathlib import Path

from bundle.format.manifest import EmbeddedFeature, Shard, Table, TableSource, dump
from bundle.format.paths import MANIFEST
from bundle.storage.staging import read_manifest

NAME = "vast"
DIM = 64
BLOCK_BYTES = 4 << 20


def add_sparse_table(directory: Path, size_bytes: int) -> int:
    """Adds a table, and a feature that reads it, to a committed bundle; returns the table's rows.

    Its checksums are not those of its zeros: `verify_bytes_per_s` must be 0.

    Args:
      directory: of the bundle.
      size_bytes: of the table's only file.
    """
    page = read_manifest(directory)
    file = f"tables/{NAME}/rows-00000-of-00001.bin"
    (directory / file).parent.mkdir()
    with (directory / file).open("wb") as rows:
        rows.truncate(size_bytes)
    count = size_bytes // (4 * DIM)
    blocks = (0,) * (size_bytes // BLOCK_BYTES)
    shard = Shard(file=file, first_row=0, rows=count, crc32c=0, blocks=blocks)
    table = Table(
        rows=count,
        dim=DIM,
        dtype="float32",
        shards=(shard,),
        source=TableSource(layout="plain", key=f"{NAME}/values"),
    )
    feature = EmbeddedFeature(kind="single", table=NAME, role="context")
    pages = {"tables": {**page.tables, NAME: table}, "features": {**page.features, NAME: feature}}
    (directory / MANIFEST).write_bytes(dump(page.model_copy(update=pages)))
    return count
