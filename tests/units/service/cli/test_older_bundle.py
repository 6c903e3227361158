"""Downloads that take blocks from an older version on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bundle.format.checksums import BLOCK_BYTES
from bundle.format.manifest import EmbeddedFeature
from bundle.storage import catalog, integrity, retention
from object_store.remote_path import RemotePath
from service.cli.bundle_download import Pulled, pull
from service.cli.bundle_source import PullError, find_bundle
from tests.bundles.tables import write_table
from tests.bundles.writer import BundleWriter
from tests.units.object_store.memory_stores import (
    CountedStore,
    published_as_objects,
    published_in_format_1,
)

DIM = 64
ROWS = 40_000
CUTS = [20_000, 30_000]
"""The first segment has a block of 4 MiB and a shorter one, the others have one block."""
LAST_BLOCK_ROW = 19_990


class Nights:
    """Versions of one model in a store, of which few rows differ."""

    def __init__(self, directory: Path) -> None:
        self.published = directory / "published"
        self.root = directory / "root"
        self.store = RemotePath(f"counted://{directory.name}/nights")
        self._values = np.random.default_rng(3).random((ROWS, DIM), np.float32)

    def publish(
        self, version: int, changed_rows: Sequence[int] = (), *, format_version: int = 2
    ) -> None:
        """Publishes a version of a table with three segments."""
        for row in changed_rows:
            self._values[row] += version
        with BundleWriter(self.published, "m", version) as writer:
            table = write_table(writer.directory, "t", self._values, "float32", CUTS)
            writer.tables["t"] = table
            writer.commit({"t": EmbeddedFeature(kind="single", table="t", role="context")})
        publish = published_as_objects if format_version == 2 else published_in_format_1
        publish(self.published / "m" / str(version), self.store / "m" / str(version))

    def pull(self, version: int) -> Pulled:
        """Downloads a version, and compares it."""
        result = pull(find_bundle(str(self.store), version=version), self.root, None)
        for file in (self.published / "m" / str(version)).rglob("*.*"):
            relative = file.relative_to(self.published)
            assert (self.root / relative).read_bytes() == file.read_bytes()
        return result

    def segments(self, version: int) -> list[Path]:
        """Returns the files of the table on this machine."""
        return sorted((self.root / "m" / str(version)).rglob("*.bin"))

    def sent_bytes(self) -> int:
        """Returns how many bytes the store has sent."""
        return CountedStore.bytes_read[self.store.parent.name]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_pull_takes_from_an_older_version_what_is_the_same(nights: Nights) -> None:
    nights.publish(1)
    nights.publish(2, [LAST_BLOCK_ROW])
    assert nights.pull(1).reused_bytes == 0
    before = nights.sent_bytes()
    result = nights.pull(2)
    changed_bytes = CUTS[0] * DIM * 4 - BLOCK_BYTES
    assert result.downloaded_bytes == changed_bytes
    assert result.reused_bytes == result.kept_bytes == result.bytes - changed_bytes
    assert nights.sent_bytes() - before < changed_bytes + 20_000
    pairs = zip(nights.segments(2), nights.segments(1), strict=True)
    assert [path.samefile(older) for path, older in pairs] == [False, True, True]

    assert retention.sweep_old(nights.root, "m", keep=1, spare=2) == ([1], [])
    manifest = catalog.read_manifest(result.bundle)
    integrity.check_files(result.bundle, manifest, tables="full")


def test_pull_takes_whole_files_alone_of_a_version_in_format_1(nights: Nights) -> None:
    nights.publish(1, format_version=1)
    nights.publish(2, [LAST_BLOCK_ROW], format_version=1)
    nights.pull(1)
    assert nights.pull(2).downloaded_bytes == CUTS[0] * DIM * 4


def test_pull_takes_no_block_that_is_damaged_here(nights: Nights) -> None:
    nights.publish(1)
    nights.publish(2)
    nights.pull(1)
    damaged = nights.segments(1)[0]
    content = bytearray(damaged.read_bytes())
    content[5] ^= 1
    damaged.write_bytes(content)
    assert nights.pull(2).downloaded_bytes == BLOCK_BYTES
    assert damaged.read_bytes() == content


def test_pull_that_was_stopped_never_writes_to_files_of_the_older_version(nights: Nights) -> None:
    nights.publish(1)
    nights.publish(2, [5])
    nights.pull(1)
    older = [path.read_bytes() for path in nights.segments(1)]
    block = find_bundle(str(nights.store), version=2).file("tables/t/rows-00000-of-00003.bin")
    changed = block.object_at(0)
    content = changed.read(0, BLOCK_BYTES)
    changed.remove()
    with pytest.raises(PullError, match="cannot be read"):
        nights.pull(2)
    changed.write(content)
    assert nights.pull(2).downloaded_bytes == BLOCK_BYTES
    assert [path.read_bytes() for path in nights.segments(1)] == older


def test_pull_downloads_what_the_older_version_lacks(nights: Nights) -> None:
    nights.publish(1)
    nights.publish(2)
    nights.pull(1)
    nights.segments(1)[2].unlink()
    assert nights.pull(2).downloaded_bytes == (ROWS - CUTS[1]) * DIM * 4


def test_pull_takes_nothing_from_a_version_whose_manifest_is_damaged(nights: Nights) -> None:
    nights.publish(1)
    nights.publish(2)
    nights.pull(1)
    (nights.root / "m/1/manifest.json").write_bytes(b"{")
    result = nights.pull(2)
    assert (result.reused_bytes, result.downloaded_bytes) == (0, result.bytes)
