"""`python -m tests.bench.features`: a request with 2 000 features, all at once and one by one; prints ratios.

10 tables of dim 8, 200 features each: half of them single, half bags of three; half of the ids are hashed. For 1
and 200 examples of each: the time of `FeatureReader.activations` over all names, and of `activation` name by name.
Also: hashing 100 000 integers beside one call of the hash for each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import farmhash
import numpy as np
from rich.console import Console
from rich.table import Table

from bundle import fingerprints, manifest
from bundle.columns import Column
from bundle.features import Activation, FeatureReader
from bundle.manifest import EmbeddedFeature, HashIds, IdentityIds
from bundle.tables import ShardWriter, TableReader

TABLES, FEATURES, ROWS, DIM = 10, 2000, 100_000, 8
EXAMPLES = (1, 200)
IDS = 100_000
TIMES = 15


def open_wide(root: Path, rows: int = ROWS) -> FeatureReader:
    """Writes the tables and returns the reader of all features."""
    random = np.random.default_rng(0)
    tables = {}
    for number in range(TABLES):
        file = f"t{number}"
        with ShardWriter(root / file) as writer:
            writer.write(random.standard_normal((rows, DIM), np.float32).astype("<f4"))
        digest = writer.close()
        shard = manifest.Shard(file=file, first_row=0, rows=rows, crc32c=digest.crc32c, blocks=digest.blocks)
        source = manifest.TableSource(layout="plain", key=file)
        page = manifest.Table(rows=rows, dim=DIM, dtype="float32", shards=(shard,), source=source)
        tables[file] = TableReader(root, page)
    pages = {
        f"f{number}": EmbeddedFeature(
            kind="bag" if number % 2 else "single",
            combiner="mean" if number % 2 else None,
            table=f"t{number % TABLES}",
            role="context",
            ids=HashIds(buckets=rows) if number % 4 > 1 else IdentityIds(),
        )
        for number in range(FEATURES)
    }
    return FeatureReader(dict(pages), tables, {})


def columns(features: int, n: int, rows: int = ROWS) -> dict[str, Column]:
    """Makes what a caller sends of n examples."""
    random = np.random.default_rng(n)
    starts = np.arange(n + 1, dtype=np.int64) * 3
    return {
        f"f{number}": Column(random.integers(0, rows, 3 * n), starts)
        if number % 2
        else Column(random.integers(0, rows, n))
        for number in range(features)
    }


def one_by_one(
    reader: FeatureReader, names: Sequence[str], sent: Mapping[str, Column], n: int
) -> dict[str, Activation]:
    """Looks each feature up by itself."""
    return {name: reader.activation(name, sent, n) for name in names}


def best_s(function: Callable[[], object]) -> float:
    """Returns the least processor time of some calls, seconds."""
    found = []
    for _ in range(TIMES):
        begun = time.process_time()
        function()
        found.append(time.process_time() - begun)
    return min(found)


def main() -> None:
    """Measures and prints."""
    shown = Table("what", "together", "one by one", "times as fast")
    with tempfile.TemporaryDirectory() as root:
        reader = open_wide(Path(root))
        names = [f"f{number}" for number in range(FEATURES)]
        for n in EXAMPLES:
            sent = columns(FEATURES, n)
            together_s = best_s(partial(reader.activations, names, sent, n))
            alone_s = best_s(partial(one_by_one, reader, names, sent, n))
            what = f"{FEATURES} features, {n} of each"
            ratio = alone_s / together_s
            shown.add_row(what, f"{together_s * 1e3:.1f} ms", f"{alone_s * 1e3:.1f} ms", f"{ratio:.1f}")
        reader.close()
    ids = np.random.default_rng(0).integers(0, 1 << 40, IDS)
    together_s = best_s(partial(fingerprints.of_integers, ids))
    alone_s = best_s(lambda: [farmhash.fingerprint64(str(each)) for each in ids.tolist()])
    each_ns = [seconds / IDS * 1e9 for seconds in (together_s, alone_s)]
    shown.add_row("an integer hashed", *(f"{ns:.0f} ns" for ns in each_ns), f"{alone_s / together_s:.1f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
