"""Bundles are downloaded, whole or in part; a stopped pull is resumed, and old versions go when
nothing uses them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundle.errors import DigestMismatch
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.manifest import Manifest, dump
from bundle.storage import catalog, integrity
from bundle.storage.staging import Staging
from bundle.tables import sharding
from bundle.tables.sharding import ShardNumber
from object_store.remote_path import RemotePath
from service.cli.bundle_download import Pulled, pull
from service.cli.bundle_source import (
    EXIT_DAMAGED,
    EXIT_DESTINATION,
    EXIT_SOURCE,
    PullError,
    find_bundle,
)
from tests.bundles.large_files import DIM, EXTRA_BYTES, ROWS
from tests.units.object_store.memory_stores import (
    CountedStore,
    published_as_objects,
    published_in_format_1,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def download(url: object, root: Path, keep: int | None = None) -> Pulled:
    return pull(find_bundle(str(url)), root, keep)


def fails(url: object, root: Path, exit_code: int, message: str) -> None:
    with pytest.raises(PullError, match=message) as stopped:
        download(url, root)
    assert stopped.value.exit_code == exit_code


def sent_bytes(store: RemotePath) -> int:
    return CountedStore.bytes_read[store.parent.name]


@pytest.mark.parametrize("location", ["", "m", "m/2"])
def test_pull_of_root_model_or_bundle_downloads_the_newest_complete_version_once(
    store: RemotePath, root: Path, published: Path, location: str
) -> None:
    result = download(store / location if location else store, root)
    assert (result.bundle, result.version) == (root / "m/2", 2)
    assert result.downloaded_bytes == result.bytes == ROWS * DIM * 4 + EXTRA_BYTES
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")
    assert (root / "m/2/manifest.json").read_bytes() == (
        published / "m/2/manifest.json"
    ).read_bytes()
    assert os.listdir(root / "m") == ["2"]
    before = sent_bytes(store)
    second_pull = download(store, root)
    assert (second_pull.downloaded_bytes, second_pull.kept_bytes) == (0, second_pull.bytes)
    assert sent_bytes(store) - before < 10_000


def test_pull_that_was_stopped_is_resumed_at_verified_blocks(
    store: RemotePath, root: Path, published: Path
) -> None:
    vectors = store / "m/2/indexes/vectors.bin"
    content = vectors.read(0, EXTRA_BYTES)
    vectors.remove()
    fails(store, root, EXIT_SOURCE, r"vectors\.bin cannot be read")
    for whole in (
        published / "m/2/tables/t"
    ).iterdir():  # which requests had ended is left to chance
        (root / "m/.staging-2/tables/t" / whole.name).write_bytes(whole.read_bytes())
    with (root / "m/.staging-2/tables/t/rows-00000-of-00002.bin").open("r+b") as file:
        file.seek(BLOCK_BYTES)  # a block that did not reach the disk
        file.write(bytes(BLOCK_BYTES))
    vectors.write(content)
    before = sent_bytes(store)
    result = download(store, root)
    assert result.downloaded_bytes == BLOCK_BYTES + EXTRA_BYTES
    assert result.kept_bytes == result.bytes - result.downloaded_bytes
    assert sent_bytes(store) - before < result.downloaded_bytes + 10_000
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")


@pytest.mark.parametrize("path", ["tables/t/rows-00000-of-00002.bin", "indexes/vectors.bin"])
def test_pull_of_a_file_that_differs_from_its_checksum_publishes_nothing(
    store: RemotePath, root: Path, path: str
) -> None:
    file = store / "m/2" / path
    whole = file.read(0, 1 << 30)
    file.write(whole[:BLOCK_BYTES] + bytes([whole[BLOCK_BYTES] ^ 1]) + whole[BLOCK_BYTES + 1 :])
    fails(store, root, EXIT_DAMAGED, path)
    assert not (root / "m/2").exists()
    file.write(whole)
    assert download(store, root).kept_bytes > 0
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")


def replace_manifest(store: RemotePath) -> None:
    manifest = find_bundle(str(store)).manifest.model_copy(
        update={"created": "2026-01-02T00:00:00+00:00"}
    )
    (store / "m/2/manifest.json").write(dump(manifest))


def test_pull_of_a_replaced_manifest_keeps_what_is_the_same(store: RemotePath, root: Path) -> None:
    vectors = store / "m/2/indexes/vectors.bin"
    content = vectors.read(0, EXTRA_BYTES)
    vectors.remove()
    fails(store, root, EXIT_SOURCE, "cannot be read")
    vectors.write(content)
    replace_manifest(store)
    with next((root / "m/.staging-2/tables").rglob("*.bin")).open("ab") as longer:
        longer.write(b"of another bundle")
    assert download(store, root).kept_bytes > 0
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")


def test_pull_after_a_stopped_export_never_writes_to_the_files_of_another_version(
    store: RemotePath, root: Path
) -> None:
    (store / "m/3/tables/t/rows-00000-of-00001.bin").remove()
    pull(find_bundle(str(store), version=1), root, None)
    older = sorted((root / "m/1/tables/t").iterdir())
    assert len(older) == 2
    damaged = bytearray(older[0].read_bytes())
    damaged[5] ^= 1
    older[0].write_bytes(damaged)
    with older[1].open("ab") as longer:
        longer.write(b"longer")
    before = [path.read_bytes() for path in older]
    with Staging(root, "m", 2) as stage:
        staged = stage.directory / "tables/t"
        staged.mkdir(parents=True)
        for path in older:
            (staged / path.name).hardlink_to(path)
        stage.finish(f"tables/t/{older[0].name}", "key")

    download(store, root)
    assert [path.read_bytes() for path in older] == before
    assert [path.stat().st_nlink for path in older] == [1, 1]
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")


def test_pull_of_another_bundle_of_the_same_version_is_rejected(
    store: RemotePath, root: Path
) -> None:
    download(store, root)
    replace_manifest(store)
    fails(store, root, EXIT_DESTINATION, "holds another bundle")


def test_pull_of_a_version_that_is_being_pulled_is_rejected(store: RemotePath, root: Path) -> None:
    with Staging(root, "m", 2):
        fails(store, root, EXIT_DESTINATION, "another run")


FILES = {
    "shard": {"tables/t/rows-00000-of-00002.bin"},
    "router": {"indexes/vectors.bin"},
    "all": {
        "tables/t/rows-00000-of-00002.bin",
        "tables/t/rows-00001-of-00002.bin",
        "indexes/vectors.bin",
    },
}


def part(manifest: Manifest, role: str) -> Manifest:
    if role == "shard":
        return sharding.manifest_of_shard(manifest, ShardNumber(1, 2), 1)
    return sharding.manifest_of_router(manifest, 1) if role == "router" else manifest


def download_part(store: RemotePath, root: Path, role: str) -> Pulled:
    return pull(
        find_bundle(str(store)), root, None, select_part=lambda manifest: part(manifest, role)
    )


def present(bundle: Path) -> set[str]:
    return {path.relative_to(bundle).as_posix() for path in bundle.rglob("*.bin")}


@pytest.mark.parametrize("role", ["shard", "router"])
def test_pull_for_a_shard_or_a_router_downloads_what_it_reads(
    store: RemotePath, root: Path, published: Path, role: str
) -> None:
    result = download_part(store, root, role)
    assert present(root / "m/2") == FILES[role]
    size = sum((published / "m/2" / path).stat().st_size for path in FILES[role])
    assert result.downloaded_bytes == result.bytes == size
    manifest = catalog.read_manifest(root / "m/2")
    assert manifest == catalog.read_manifest(published / "m/2"), "the whole one"
    integrity.check_files(root / "m/2", part(manifest, role), tables="full")
    with pytest.raises(DigestMismatch, match=r"file '.*bin' of the bundle is missing"):
        integrity.check_files(root / "m/2", manifest)


def test_pull_for_another_role_adds_the_files_that_a_version_lacks(
    store: RemotePath, root: Path
) -> None:
    download_part(store, root, "shard")
    status_before = (root / "m/2" / next(iter(FILES["shard"]))).stat()
    added = download_part(store, root, "router")
    assert added.downloaded_bytes == added.bytes == EXTRA_BYTES
    assert present(root / "m/2") == FILES["shard"] | FILES["router"]
    whole = download(store, root)
    assert whole.downloaded_bytes == 1000 * DIM * 4
    assert whole.kept_bytes == whole.bytes - whole.downloaded_bytes
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")
    status_after = (root / "m/2" / next(iter(FILES["shard"]))).stat()
    assert (status_after.st_ino, status_after.st_mtime_ns) == (
        status_before.st_ino,
        status_before.st_mtime_ns,
    )
    assert os.listdir(root / "m") == ["2"]
    assert download_part(store, root, "shard").downloaded_bytes == 0


def test_pull_that_cannot_add_all_files_adds_none_and_is_resumed(
    store: RemotePath, root: Path
) -> None:
    download_part(store, root, "router")
    file = store / "m/2/tables/t/rows-00001-of-00002.bin"
    content = file.read(0, EXTRA_BYTES)
    file.remove()
    fails(store, root, EXIT_SOURCE, "cannot be read")
    assert present(root / "m/2") == FILES["router"]
    file.write(content)
    download(store, root)
    assert present(root / "m/2") == FILES["all"]


@pytest.fixture
def as_objects(published: Path, tmp_path: Path) -> RemotePath:
    """Version 2 as an exporter publishes it."""
    root = RemotePath(f"counted://{tmp_path.name}/objects")
    published_as_objects(published / "m/2", root / "m/2")
    return root


@pytest.mark.parametrize("role", ["all", "shard", "router"])
def test_pull_of_objects_downloads_what_is_read_here(
    as_objects: RemotePath, root: Path, published: Path, role: str
) -> None:
    before = sent_bytes(as_objects)
    result = download_part(as_objects, root, role)
    wanted = FILES.get(role) or FILES["shard"] | FILES["router"]
    assert present(result.bundle) == wanted
    assert sent_bytes(as_objects) - before < result.downloaded_bytes + 20_000
    for path in wanted:
        assert (result.bundle / path).read_bytes() == (published / "m/2" / path).read_bytes()


@pytest.mark.parametrize("path", ["tables/t/rows-00000-of-00002.bin", "indexes/vectors.bin"])
def test_pull_of_an_object_that_was_damaged_publishes_nothing_and_resumes(
    as_objects: RemotePath, root: Path, path: str
) -> None:
    file = find_bundle(str(as_objects)).file(path).object_at(BLOCK_BYTES)
    whole = file.read(0, 1 << 30)
    file.write(bytes([whole[0] ^ 1]) + whole[1:])
    # The manifest has checksums of the blocks of segments alone.
    object_text = file.name if path.startswith("tables") else "3 objects from "
    fails(as_objects, root, EXIT_DAMAGED, f"{path} .*{object_text}.* differs from its checksum")
    assert not (root / "m/2").exists()
    file.remove()
    fails(as_objects, root, EXIT_SOURCE, f"{file.name} cannot be read")
    file.write(whole)
    assert download(as_objects, root).kept_bytes > 0
    integrity.check_files(root / "m/2", catalog.read_manifest(root / "m/2"), tables="full")


def test_pull_of_objects_in_format_1_downloads_the_same(
    published: Path, root: Path, tmp_path: Path
) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/format_1")
    published_in_format_1(published / "m/2", store / "m/2")
    result = download(store, root)
    for path in FILES["shard"] | FILES["router"]:
        assert (result.bundle / path).read_bytes() == (published / "m/2" / path).read_bytes()
