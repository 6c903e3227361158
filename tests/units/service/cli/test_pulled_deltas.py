"""`rowcast-serve pull` of versions whose segments have deltas: a night fetches the rows that
changed, whatever versions the machine has, and a pulled version needs no other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle.format import objects
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.manifest import EmbeddedFeature
from bundle.storage import catalog
from bundle.storage.integrity import check_files
from bundle.tables import sharding
from bundle.tables.shard_number import ShardNumber
from object_store.remote_path import RemotePath
from object_store.stored_content import content_of
from tests.bundles.next_versions import rows_of, stored_rows, write_next_version
from tests.bundles.tables import write_floats
from tests.bundles.writer import BundleWriter
from tests.units.object_store.memory_stores import published_as_objects, uploaded
from tests.units.service.cli.test_pull import (
    EXIT_DAMAGED,
    EXIT_SOURCE,
    fails,
    pulled,
    sent_bytes,
)

DIM = 64
ROW_BYTES = DIM * 4
ROWS = 2 * BLOCK_BYTES // ROW_BYTES + 30_000
SHARE = 0.02
NIGHTS = 3
BASE = "tables/t/rows-00000-of-00001.bin"
CHANGED_BYTES = int(ROWS * SHARE) * ROW_BYTES
MANIFEST_BYTES_MAX = 20_000
Publish = Callable[[Path, RemotePath], RemotePath]


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 4 of a model: 2 % of the rows of its table change each night, anywhere."""
    root = tmp_path_factory.mktemp("nights")
    rows = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
    with BundleWriter(root, "m", 1) as writer:
        writer.tables["t"] = write_floats(writer.directory, "t", rows, "float32", [])
        bundle, _ = writer.commit({"t": EmbeddedFeature(kind="single", table="t", role="context")})
    for seed in range(NIGHTS):
        bundle = write_next_version(bundle, SHARE, seed)
    return bundle.parent


@pytest.fixture(params=[uploaded, published_as_objects], ids=["files", "objects"])
def publish(request: pytest.FixtureRequest) -> Publish:
    function: Publish = request.param
    return function


@pytest.fixture
def store(nights: Path, tmp_path: Path) -> RemotePath:
    store = RemotePath(f"counted://{tmp_path.name}/bundles")
    for version in nights.iterdir():
        published_as_objects(version, store / "m" / version.name)
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def assert_same(bundle: Path, nights: Path) -> None:
    """Checks that a pulled version is the published one, byte by byte."""
    check_files(bundle, catalog.read_manifest(bundle), "full")
    np.testing.assert_array_equal(rows_of(bundle), rows_of(nights / bundle.name))


def inodes(bundle: Path) -> dict[str, int]:
    return {
        path.relative_to(bundle).as_posix(): path.stat().st_ino
        for path in bundle.rglob("*")
        if path.suffix == ".bin" or ".delta-" in path.name
    }


def test_each_night_fetches_the_rows_that_changed_and_links_the_rest(
    nights: Path, store: RemotePath, root: Path
) -> None:
    pulled(store, root, "--version", 1)
    for version in range(2, NIGHTS + 2):
        before = sent_bytes(store)
        result = pulled(store, root, "--version", version)
        # The manifest and the list of objects are read, too.
        read_bytes = sent_bytes(store) - before
        assert result["downloaded_bytes"] <= 1.3 * CHANGED_BYTES
        assert read_bytes <= result["downloaded_bytes"] + 2 * MANIFEST_BYTES_MAX
        older = inodes(root / f"m/{version - 1}")
        newer = inodes(root / f"m/{version}")
        assert older.items() <= newer.items()
        assert newer.keys() - older.keys() == {f"{BASE}.delta-{version - 1}"}
        assert_same(root / f"m/{version}", nights)


def test_chain_is_pulled_to_an_empty_machine_and_by_a_shard(
    nights: Path, publish: Publish, tmp_path: Path, root: Path
) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/{publish.__name__}")
    publish(nights / "4", store / "m/4")
    pulled(store, root, "--shard", "2/2", "--shard-min-bytes", 1)
    assert inodes(root / "m/4").keys() == {BASE, *(f"{BASE}.delta-{n}" for n in (1, 2, 3))}
    assert_same(root / "m/4", nights)
    assert pulled(store, root)["downloaded_bytes"] == 0


def test_version_before_is_pulled_beside_the_one_after_it(
    nights: Path, store: RemotePath, root: Path
) -> None:
    pulled(store, root)
    back = pulled(store, root, "--version", 2)
    assert back["downloaded_bytes"] == 0
    assert inodes(root / "m/2").items() <= inodes(root / "m/4").items()
    assert_same(root / "m/2", nights)


def test_nights_that_were_not_pulled_are_fetched_as_their_deltas(
    nights: Path, store: RemotePath, root: Path
) -> None:
    pulled(store, root, "--version", 1)
    result = pulled(store, root)
    assert 3 * CHANGED_BYTES < result["downloaded_bytes"] <= 1.3 * 3 * CHANGED_BYTES
    assert_same(root / "m/4", nights)


def test_versions_that_vanish_take_nothing_from_those_that_stay(
    nights: Path, store: RemotePath, root: Path
) -> None:
    for version in (1, 2, 3):
        pulled(store, root, "--version", version)
    result = pulled(store, root, "--keep", 1)
    assert result["removed"] == [1, 2, 3]
    assert_same(root / "m/4", nights)


def test_pull_that_was_stopped_within_a_delta_is_resumed(
    nights: Path, store: RemotePath, root: Path
) -> None:
    pulled(store, root, "--version", 3)
    delta = object_of(store, 4, f"{BASE}.delta-3")
    content = delta.read(0, 1 << 30)
    delta.remove()
    fails(store, root, EXIT_SOURCE, str(delta))
    assert not (root / "m/4").exists()
    # What was linked before the pull stopped is that of version 3, whole and unchanged.
    assert_same(root / "m/3", nights)
    staged = root / "m/.staging-4"
    (staged / f"{BASE}.delta-3").write_bytes(content[:-1000])
    delta.write(content)
    pulled(store, root)
    for version in (3, 4):
        assert_same(root / f"m/{version}", nights)


@pytest.mark.parametrize("number", [1, 3])
def test_delta_that_is_damaged_in_the_store_publishes_nothing(
    nights: Path, store: RemotePath, root: Path, number: int
) -> None:
    path = f"{BASE}.delta-{number}"
    damaged = object_of(store, 4, path)
    content = damaged.read(0, 1 << 30)
    damaged.write(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    fails(store, root, EXIT_DAMAGED, path)
    assert not (root / "m/4").exists()
    # A machine that has the delta already has no need of the damaged object.
    replica = root.with_name("replica")
    shutil.copytree(nights / "3", replica / "m/3")
    if number == 1:
        pulled(store, replica)
        assert_same(replica / "m/4", nights)
    else:
        fails(store, replica, EXIT_DAMAGED, path)
        assert_same(replica / "m/3", nights)


def test_delta_that_this_machine_damaged_is_fetched_again(
    nights: Path, store: RemotePath, root: Path
) -> None:
    pulled(store, root, "--version", 3)
    path = root / "m/3" / f"{BASE}.delta-1"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    pulled(store, root)
    assert_same(root / "m/4", nights)
    assert path.read_bytes() == content


@pytest.mark.parametrize("total", [2, 3, 7])
def test_shards_of_one_segment_with_deltas_read_its_rows(nights: Path, total: int) -> None:
    bundle = nights / "4"
    table = catalog.read_manifest(bundle).tables["t"]
    shards = [ShardNumber(number, total) for number in range(1, total + 1)]
    parts = [
        stored_rows(bundle, sharding.table_of_rows(table, sharding.row_range(ROWS, shard)))
        for shard in shards
    ]
    np.testing.assert_array_equal(np.concatenate(parts), rows_of(bundle))


def object_of(store: RemotePath, version: int, path: str) -> RemotePath:
    """Returns the only object of a file of a version."""
    directory = store / f"m/{version}"
    listed = objects.parse((directory / objects.OBJECTS).read(0, 1 << 20))
    content = content_of(directory.parent, listed.files[path])
    (only,) = content.objects
    return only
