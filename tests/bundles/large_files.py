"""A bundle that is large enough to be fetched in several requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bundle.format.checksums import BLOCK_BYTES
from bundle.format.manifest import EmbeddedFeature, Manifest
from tests.bundles.tables import write_table
from tests.bundles.writer import BundleWriter

DIM = 16
ROWS = (2 * BLOCK_BYTES + 100_000 * 64) // 64
"""The rows of a table of three and a half blocks."""
EXTRA_BYTES = 9 << 20
"""The size of a file without checksums of its blocks."""


def write_large_bundle(root: Path, version: int) -> Manifest:
    """Writes a version of model `m`: a table in two segments, of which one row differs from version
    to version, and a large file of an index.
    """
    random = np.random.default_rng(1)
    rows = random.standard_normal((ROWS, DIM)).astype(np.float32)
    rows[0] = version
    with BundleWriter(root, "m", version) as writer:
        writer.tables["t"] = write_table(writer.directory, "t", rows, "float32", [ROWS - 1000])
        vectors = writer.directory / "indexes/vectors.bin"
        vectors.parent.mkdir()
        vectors.write_bytes(random.bytes(EXTRA_BYTES))
        feature = EmbeddedFeature(kind="single", table="t", role="context")
        _, manifest = writer.commit({"t": feature})
    return manifest
