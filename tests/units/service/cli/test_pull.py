"""`rowcast-serve pull`: bundles are downloaded, whole or in part, from a directory or a store, in
either format; a stopped pull is resumed, blocks come from older versions, damage publishes nothing,
and each failure has its exit code and one line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bundle.format.checksums import BLOCK_BYTES
from bundle.format.objects import pool_path
from bundle.storage import catalog, integrity
from bundle.storage.staging import Staging
from object_store.remote_path import RemotePath
from service.cli.serve import command
from tests.bundles.large_files import DIM, EXTRA_BYTES, ROWS, write_large_bundle
from tests.units.object_store.memory_stores import (
    CountedStore,
    published_as_objects,
    uploaded,
)
from tests.units.service.running import flip

FIRST = "tables/t/rows-00000-of-00002.bin"
SECOND = "tables/t/rows-00001-of-00002.bin"
VECTORS = "indexes/vectors.bin"
WHOLE_BYTES = ROWS * DIM * 4 + EXTRA_BYTES
SHARD = ("--shard", "1/2", "--shard-min-bytes", "1")
ROUTER = ("--router", "--shard-min-bytes", "1")
PARTS: dict[tuple[str, ...], set[str]] = {
    (): {FIRST, SECOND, VECTORS},
    SHARD: {FIRST},
    ROUTER: {VECTORS},
}
"""The files that each role reads."""
EXIT_USAGE = 2
EXIT_SOURCE = 3
EXIT_DAMAGED = 5
EXIT_DESTINATION = 6


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command(), ["pull", *map(str, arguments)])


def pulled(url: object, root: Path, *options: object) -> dict[str, Any]:
    """Pulls; returns what is printed."""
    done = run(url, root, "--json", *options)
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def fails(url: object, root: Path, code: int, words: str, *options: object) -> None:
    done = run(url, root, *options)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr


def present(bundle: Path) -> set[str]:
    return {path.relative_to(bundle).as_posix() for path in bundle.rglob("*.bin")}


def check(bundle: Path) -> None:
    integrity.check_files(bundle, catalog.read_manifest(bundle), tables="full")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with versions 1 and 2 of model `m`."""
    published = tmp_path_factory.mktemp("published")
    for version in (1, 2):
        write_large_bundle(published, version)
    return published


def as_objects(published: Path, store: RemotePath) -> None:
    published_as_objects(published / "m/2", store / "m/2")
    (store / "m/3/started").write(b"unfinished")


def as_files(published: Path, store: RemotePath) -> None:
    uploaded(published, store)
    (store / f"m/3/{FIRST}").write(b"unfinished")


@pytest.fixture
def store(published: Path, tmp_path: Path) -> RemotePath:
    """The versions in a store that counts what it sends, with an unfinished version 3."""
    store = RemotePath(f"counted://{tmp_path.name}/bundles")
    as_files(published, store)
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def sent_bytes(store: RemotePath) -> int:
    return CountedStore.bytes_read[store.parent.name]


@pytest.mark.parametrize("publish", [as_files, as_objects])
@pytest.mark.parametrize("options", PARTS)
def test_pull_downloads_what_a_role_reads_once_and_adds_the_rest(
    publish: Callable[[Path, RemotePath], None],
    options: tuple[str, ...],
    published: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/{publish.__name__}")
    publish(published, store)
    before = sent_bytes(store)
    result = pulled(store, root, *options)
    bundle = root / "m/2"
    assert (result["bundle"], result["version"], present(bundle)) == (
        str(bundle),
        2,
        PARTS[options],
    )
    size = sum((published / "m/2" / path).stat().st_size for path in PARTS[options])
    assert result["downloaded_bytes"] == result["bytes"] == size
    assert sent_bytes(store) - before < size + 20_000
    assert os.listdir(root / "m") == ["2"]

    repeated = pulled(store, root, *options)
    assert (repeated["downloaded_bytes"], repeated["kept_bytes"]) == (0, size)
    inodes = {path: (bundle / path).stat().st_ino for path in PARTS[options]}
    whole = pulled(store, root)
    assert whole["downloaded_bytes"] == WHOLE_BYTES - size
    assert {path: (bundle / path).stat().st_ino for path in inodes} == inodes
    check(bundle)
    for path in (*PARTS[()], "manifest.json"):
        assert (bundle / path).read_bytes() == (published / "m/2" / path).read_bytes()


@pytest.mark.parametrize("location", ["m", "m/2"])
def test_pull_finds_the_version_of_a_model_or_a_bundle_and_removes_old_ones(
    location: str, store: RemotePath, root: Path
) -> None:
    assert pulled(store, root, "--version", 1)["version"] == 1
    result = pulled(store / location, root, "--keep", 1)
    assert (result["version"], result["removed"], os.listdir(root / "m")) == (2, [1], ["2"])
    printed = run(store, root).stdout
    assert f"{root}/m/2: " in printed
    assert "0.0 MiB downloaded" in printed


def test_pull_that_was_stopped_publishes_nothing_and_is_resumed_at_verified_blocks(
    published: Path, store: RemotePath, root: Path
) -> None:
    vectors = store / "m/2" / VECTORS
    content = vectors.read(0, EXTRA_BYTES)
    vectors.remove()
    fails(store, root, EXIT_SOURCE, "vectors.bin cannot be read")
    staged = root / "m/.staging-2"
    # Which requests had ended is left to chance.
    for path in (FIRST, SECOND):
        (staged / path).write_bytes((published / "m/2" / path).read_bytes())
    with (staged / FIRST).open("r+b") as file:
        file.seek(BLOCK_BYTES)  # a block that did not reach the disk
        file.write(bytes(BLOCK_BYTES))
    vectors.write(content)
    result = pulled(store, root)
    assert result["downloaded_bytes"] == BLOCK_BYTES + EXTRA_BYTES
    assert result["kept_bytes"] == result["bytes"] - result["downloaded_bytes"]
    check(root / "m/2")


@pytest.mark.parametrize("path", [FIRST, VECTORS])
@pytest.mark.parametrize("is_there", [False, True])
def test_damaged_file_publishes_nothing_beside_what_was_there(
    path: str, is_there: bool, store: RemotePath, root: Path
) -> None:
    role = SHARD if path == VECTORS else ROUTER
    if is_there:
        pulled(store, root, *role)
    file = store / "m/2" / path
    whole = file.read(0, 1 << 30)
    file.write(whole[:BLOCK_BYTES] + bytes([whole[BLOCK_BYTES] ^ 1]) + whole[BLOCK_BYTES + 1 :])
    fails(store, root, EXIT_DAMAGED, path)
    assert present(root / "m/2") == (PARTS[role] if is_there else set())
    file.write(whole)
    assert pulled(store, root)["kept_bytes"] > 0
    check(root / "m/2")


def replace_manifest(store: RemotePath, before: bytes, after: bytes) -> None:
    manifest = store / "m/2/manifest.json"
    manifest.write(manifest.read(0, 1 << 20).replace(before, after))


def test_source_or_destination_that_cannot_be_used_is_named(store: RemotePath, root: Path) -> None:
    fails(store / "none", root, EXIT_SOURCE, "does not exist")
    fails(store, root, EXIT_USAGE, "'other'", "--model", "other")
    fails(store, root, EXIT_USAGE, "3, 2, 1", "--version", 9)
    fails(store / "m/1", root, EXIT_USAGE, "version 1", "--version", 2)
    (store / "n/1/manifest.json").write(b"{}")
    fails(store, root, EXIT_USAGE, "--model")
    model = ("--model", "m")
    assert pulled(store, root, *model)["version"] == 2
    replace_manifest(store, b"ckpt-2", b"ckpt-1")
    fails(store, root, EXIT_DAMAGED, "manifest.json", *model)
    (store / "m/2/manifest.json").write(b"{}")
    fails(store, root, EXIT_SOURCE, "manifest.json", *model)
    with Staging(root, "m", 1):
        fails(store, root, EXIT_DESTINATION, "another run", *model, "--version", 1)
    (root / "m/1").mkdir()
    (root / "m/1/manifest.json").write_bytes((store / "m/1/manifest.json").read(0, 1 << 20)[:-2])
    done = run(store, root, *model, "--version", 1)
    assert done.exit_code in {EXIT_DAMAGED, EXIT_DESTINATION}
    for kind in ("file", "pipe"):
        path = root / kind
        path.touch() if kind == "file" else os.mkfifo(path)
        assert run(store, path, *model).exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    "options",
    [
        ("root", "--version", "x"),
        ("root", "--keep", "0"),
        ("s3://bucket/root",),
        ("root", "--shard", "3/2"),
        ("root", "--shard", "1/2", "--router"),
    ],
)
def test_invalid_arguments_exit_2(published: Path, options: tuple[str, ...]) -> None:
    assert run(published, *options).exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("manifest", b"ckpt-2", b"ckpt-3", "not what its name says"),
        ("objects.json", b"indexes/vectors.bin", b"indexes/other.bin", "indexes/vectors.bin"),
        ("objects.json", b"{", b"", "JSON"),
    ],
)
def test_damaged_list_of_objects_or_manifest_is_refused(
    name: str, before: bytes, after: bytes, words: str, published: Path, root: Path, tmp_path: Path
) -> None:
    store = RemotePath(f"counted://{tmp_path.name}/objects")
    as_objects(published, store)
    listed = store / "m/2/objects.json"
    file = listed
    if name == "manifest":
        content = (published / "m/2/manifest.json").read_bytes()
        file = store / "m" / pool_path(hashlib.sha256(content).hexdigest())
    file.write(file.read(0, 1 << 30).replace(before, after))
    fails(store, root, EXIT_DAMAGED, words)
    assert not (root / "m/2").exists()


def in_a_store(published: Path, place: Path) -> object:
    store = RemotePath(f"counted://{place.name}/nights")
    for version in ("m/1", "m/2"):
        published_as_objects(published / version, store / version)
    return store


def in_a_store_as_files(published: Path, place: Path) -> object:
    store = RemotePath(f"counted://{place.name}/nights")
    uploaded(published, store)
    return store


def in_a_directory(published: Path, _: Path) -> object:
    return published


@pytest.mark.parametrize("source", [in_a_store, in_a_store_as_files, in_a_directory])
@pytest.mark.parametrize(
    ("damage", "downloaded"),
    [
        ("nothing", BLOCK_BYTES),
        ("a block", 2 * BLOCK_BYTES),
        ("a file", BLOCK_BYTES + EXTRA_BYTES),
        ("the manifest", WHOLE_BYTES),
    ],
)
def test_pull_takes_from_an_older_version_what_is_the_same_and_sound(
    damage: str,
    downloaded: int,
    source: Callable[[Path, Path], object],
    published: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    store = source(published, tmp_path)
    assert pulled(store, root, "--version", 1)["reused_bytes"] == 0
    older = root / "m/1"
    if damage == "a block":
        flip(older / FIRST, BLOCK_BYTES + 5)
    elif damage == "a file":
        (older / VECTORS).unlink()
    elif damage == "the manifest":
        (older / "manifest.json").write_bytes(b"{")
    before = {path: path.read_bytes() for path in older.rglob("*.bin")}
    result = pulled(store, root, "--version", 2)
    assert result["downloaded_bytes"] == downloaded
    assert result["reused_bytes"] == result["bytes"] - downloaded
    for path in (FIRST, SECOND, VECTORS, "manifest.json"):
        assert (root / "m/2" / path).read_bytes() == (published / "m/2" / path).read_bytes()
    assert {path: path.read_bytes() for path in older.rglob("*.bin")} == before
    if damage == "nothing":
        assert (root / "m/2" / VECTORS).samefile(older / VECTORS)
