"""A bundle that is large enough to be fetched in several requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.manifest import (
    EmbeddedFeature,
    Manifest,
    Provenance,
    Table,
    TableCheck,
    TableSource,
    Verification,
)
from bundle.storage.staging import Staging
from bundle.tables.reader import ShardWriter

DIM = 16
ROWS = (2 * BLOCK_BYTES + 100_000 * 64) // 64
"""Of a table of three blocks and a half."""
EXTRA_BYTES = 9 << 20
"""Of a file without checksums of its blocks."""


def write(root: Path, version: int) -> Manifest:
    """Writes a bundle of one table in two shards, and a large file."""
    with Staging(root, "m", version) as stage:
        values = np.random.default_rng(version).standard_normal((ROWS, DIM)).astype(np.float32)
        shards = []
        for number, part in enumerate(np.split(values, [ROWS - 1000])):
            file = paths.table_shard("t", number, 2)
            with ShardWriter(stage.directory / file) as writer:
                writer.write(part)
                digest = writer.close()
            first = 0 if number == 0 else ROWS - 1000
            shard = {"file": file, "first_row": first, "rows": len(part), "crc32c": digest.crc32c}
            shards.append(shard | {"blocks": digest.blocks})
        (stage.directory / "indexes").mkdir()
        (stage.directory / "indexes/vectors.bin").write_bytes(
            np.random.default_rng(version).bytes(EXTRA_BYTES)
        )
        table: dict[str, Any] = {
            "rows": ROWS,
            "dim": DIM,
            "dtype": "float32",
            "shards": tuple(shards),
        }
        provenance: dict[str, Any] = {
            "checkpoint": "ckpt-1",
            "step": None,
            "fingerprint": "crc32c:0",
        }
        manifest = Manifest(
            model="m",
            version=version,
            created="2026-01-01T00:00:00+00:00",
            provenance=Provenance(**provenance, model_code="", exporter="", libraries={}),
            tables={"t": Table(**table, source=TableSource(layout="plain", key="t"))},
            features={"t": EmbeddedFeature(kind="single", table="t", role="context")},
            towers={},
            verification=Verification(
                tables={"t": TableCheck(rows_compared=ROWS, rows=ROWS)}, examples=0, tolerance=""
            ),
            files=stage.digests("indexes"),
        )
        stage.commit(manifest)
        return manifest
