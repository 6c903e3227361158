"""One version in a store: objects that are sent once, and the file that makes them a version."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import DestinationExists
from bundle.format.checksums import crc32c
from bundle.format.manifest import File
from bundle.format.objects import OBJECT_BYTES, ObjectMap, StoredFile
from export.errors import DestinationError
from export.jobs import store_versions
from export.jobs.store_versions import GRACE_DAYS, StoreVersion, is_committed
from object_store.locations import location_of
from object_store.remote_path import RemotePath

CONTENT = b"content of a file"
NAME = hashlib.sha256(CONTENT).hexdigest()
EXPECTED = File(path="rows.bin", bytes=len(CONTENT), crc32c=crc32c(CONTENT))
STORED = StoredFile(bytes=len(CONTENT), objects=(NAME,))
DAY_S = 86_400


@pytest.fixture
def model(tmp_path: Path) -> RemotePath:
    root = location_of(f"local://{tmp_path}/store/m")
    assert isinstance(root, RemotePath)
    return root


@pytest.fixture
def version(model: RemotePath) -> StoreVersion:
    return StoreVersion(model / "1")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "rows.bin").write_bytes(CONTENT)
    return tmp_path / "rows.bin"


def page(content: bytes = CONTENT, version: int = 1) -> ObjectMap:
    name = hashlib.sha256(content).hexdigest()
    stored = StoredFile(bytes=len(content), objects=(name,))
    return ObjectMap(model="m", version=version, files={"manifest.json": stored})


def age(file: RemotePath, days: float) -> None:
    """Sets the age of a file."""
    then = time.time() - days * DAY_S
    os.utime(Path(file.url.removeprefix("local://")), (then, then))


def test_file_is_sent_as_an_object_of_its_content_once(version: StoreVersion, source: Path) -> None:
    version.begin()
    stored = version.send(source, EXPECTED)
    assert stored == STORED
    content = version.content(stored)
    assert content.objects == (version.directory.parent / f".objects/{NAME[:2]}/{NAME}",)
    assert content.read(0, 99) == CONTENT
    assert version.missing([stored]) == set()
    assert version.missing([StoredFile(bytes=1, objects=("0" * 64,)), stored]) == {"0" * 64}
    before = content.objects[0].stamp()
    assert version.send(source, EXPECTED) == stored
    assert content.objects[0].stamp() == before


def test_file_of_several_blocks_is_read_back_across_them(
    version: StoreVersion, tmp_path: Path
) -> None:
    content = np.random.default_rng(1).bytes(OBJECT_BYTES) * 2 + b"the end"
    (tmp_path / "large").write_bytes(content)
    expected = File(path="large", bytes=len(content), crc32c=crc32c(content))
    version.begin()
    stored = version.send(tmp_path / "large", expected)
    assert len(stored.objects) == 3
    assert stored.objects[0] == stored.objects[1]
    read = version.content(stored).read
    for offset, count in ((0, len(content) + 9), (5, 7), (OBJECT_BYTES - 3, OBJECT_BYTES + 6)):
        assert read(offset, count) == content[offset : offset + count]
    assert read(len(content), 5) == b""


@pytest.mark.parametrize("days", [1, 30])
def test_objects_of_the_newest_version_are_not_sent_again(
    version: StoreVersion, model: RemotePath, source: Path, days: float
) -> None:
    version.begin()
    version.send(source, EXPECTED)
    version.commit(page())
    (file,) = version.content(STORED).objects
    age(file, days)
    before = file.stamp()
    later = StoreVersion(model / "2")
    later.begin()
    assert later.is_older(STORED.blocks[0])
    assert later.send(source, EXPECTED) == STORED
    assert file.stamp() == before

    # What a lifecycle rule removed is sent again, though a version names it.
    file.remove()
    second = StoreVersion(model / "2")
    second.begin()
    assert not second.is_older(STORED.blocks[0])
    second.send(source, EXPECTED)
    assert file.read(0, 99) == CONTENT


def test_object_that_no_version_names_is_sent_again_once_it_may_be_removed(
    version: StoreVersion, source: Path
) -> None:
    version.begin()
    version.send(source, EXPECTED)
    (file,) = version.content(STORED).objects
    age(file, GRACE_DAYS / 2 - 0.1)
    young = file.stamp()
    version.begin()
    version.send(source, EXPECTED)
    assert file.stamp() == young
    age(file, GRACE_DAYS / 2 + 0.1)
    old = file.stamp()
    version.send(source, EXPECTED)
    assert file.stamp() != old


def test_without_reuse_every_object_is_sent_again(
    version: StoreVersion, model: RemotePath, source: Path
) -> None:
    version.begin()
    version.send(source, EXPECTED)
    version.commit(page())
    (file,) = version.content(STORED).objects
    file.write(b"damaged content of a")
    later = StoreVersion(model / "2", reuse=False)
    later.begin()
    assert not later.is_older(STORED.blocks[0])
    later.send(source, EXPECTED)
    assert file.read(0, 99) == CONTENT


def test_newest_version_that_cannot_be_read_is_passed_over(
    version: StoreVersion, model: RemotePath, source: Path
) -> None:
    version.begin()
    version.send(source, EXPECTED)
    version.commit(page())
    (model / "10/objects.json").write(b"torn")
    (model / "3/manifest.json").write(b"a bundle as it lies on a disk")
    later = StoreVersion(model / "11")
    later.begin()
    assert later.is_older(STORED.blocks[0])


def test_many_objects_are_looked_for_by_listing_the_pool(
    version: StoreVersion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store_versions, "_LISTED_MIN", 3)
    version.begin()
    files = []
    for number in range(4):
        content = f"content {number}".encode()
        source = tmp_path / str(number)
        source.write_bytes(content)
        expected = File(path=source.name, bytes=len(content), crc32c=crc32c(content))
        files.append(version.send(source, expected))
    assert version.missing(files) == set()
    version.content(files[1]).objects[0].remove()
    version.content(files[2]).objects[0].write(b"another size")
    assert version.missing(files) == {*files[1].objects, *files[2].objects}


@pytest.mark.parametrize("change", [{"bytes": 18}, {"crc32c": 5}])
def test_file_that_changed_since_it_was_written_is_not_sent(
    version: StoreVersion, source: Path, change: dict[str, int]
) -> None:
    expected = EXPECTED.model_copy(update=change)
    with pytest.raises(DestinationError) as failure:
        version.send(source, expected)
    assert str(failure.value) == (
        f"{source} has changed since it was written: 17 bytes with crc32c {EXPECTED.crc32c}, "
        f"{expected.bytes} with {expected.crc32c} were expected; nothing of it was sent; run the "
        "export again: it writes the file anew"
    )
    assert version.directory.listing() == {}


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"E"])
def test_object_that_is_not_what_was_sent_is_an_error(
    version: StoreVersion, source: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    write = RemotePath.write
    version.begin()
    monkeypatch.setattr(RemotePath, "write", lambda target, _: write(target, content))
    with pytest.raises(
        DestinationError,
        match=r"does not hold what was sent \(17 bytes of rows\.bin from byte 0\); remove it",
    ):
        version.send(source, EXPECTED)


def test_version_is_there_once_its_objects_are_named(version: StoreVersion) -> None:
    assert not is_committed(version.directory)
    version.begin()
    assert list(version.directory.listing()) == ["started"]
    version.begin()  # it is gone on with
    assert not is_committed(version.directory)

    version.commit(page())
    assert is_committed(version.directory)
    assert list(version.directory.listing()) == ["objects.json"]
    with pytest.raises(DestinationExists, match="is there already; committed bundles are never ov"):
        version.begin()
    version.commit(page())  # after a lost response
    with pytest.raises(DestinationExists, match=r"another run has published .*; this run pub"):
        version.commit(page(b"other"))


def test_bundle_that_was_copied_as_it_lies_on_a_disk_is_a_version(version: StoreVersion) -> None:
    (version.directory / "manifest.json").write(b"{}")
    assert is_committed(version.directory)
