"""What a service expects a version to need in memory, before it loads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bundle.format.manifest import EmbeddedFeature
from bundle.storage import catalog
from bundle.tables.maps import MappedRows
from service.versions.loader import forecast_bytes
from tests.bundles.next_versions import write_next_version
from tests.bundles.tables import write_floats
from tests.bundles.writer import BundleWriter

ROWS = 300_000


def test_forecast_covers_what_merged_deltas_take(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((ROWS, 2)).astype(np.float32)
    with BundleWriter(tmp_path, "m", 1) as writer:
        writer.tables["t"] = write_floats(writer.directory, "t", rows, "int8", [100_000])
        bundle, whole = writer.commit(
            {"t": EmbeddedFeature(kind="single", table="t", role="context")}
        )
    for seed in range(3):
        bundle = write_next_version(bundle, 0.1, seed)
    manifest = catalog.read_manifest(bundle)
    table = manifest.tables["t"]
    actual_bytes = 0
    for segments, width in ((table.segments, table.row_bytes), (table.scales, 4)):
        for mapped in MappedRows(bundle, segments, width).segments():
            assert mapped.changed is not None
            for part in ("bits", "ranks", "slots", "frames"):
                actual_bytes += getattr(mapped.changed, part).nbytes
    forecast = forecast_bytes(manifest, None, 1) - forecast_bytes(whole, None, 1)
    assert actual_bytes <= forecast < 3 * actual_bytes
