"""One version in a store: objects that are sent once, and the file that makes them a version."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bundle.errors import DestinationExists
from bundle.format.checksums import crc32c
from bundle.format.manifest import File
from bundle.format.objects import ObjectMap, StoredFile
from export.errors import DestinationError
from export.jobs.store_versions import StoreVersion, is_committed
from object_store.locations import located
from object_store.remote_path import RemotePath

CONTENT = b"content of a file"
NAME = hashlib.sha256(CONTENT).hexdigest()
EXPECTED = File(path="rows.bin", bytes=len(CONTENT), crc32c=crc32c(CONTENT))


@pytest.fixture
def version(tmp_path: Path) -> StoreVersion:
    place = located(f"local://{tmp_path}/store/m/1")
    assert isinstance(place, RemotePath)
    return StoreVersion(place)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "rows.bin").write_bytes(CONTENT)
    return tmp_path / "rows.bin"


def page(content: bytes = CONTENT) -> ObjectMap:
    stored = StoredFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    return ObjectMap(model="m", version=1, files={"manifest.json": stored})


def test_file_is_sent_as_an_object_of_its_content_once(version: StoreVersion, source: Path) -> None:
    stored = version.send(source, EXPECTED)
    assert (stored.sha256, stored.bytes) == (NAME, len(CONTENT))
    assert version.file(stored) == version.directory / "objects" / NAME
    assert version.file(stored).read(0, 99) == CONTENT
    assert version.holds(stored)
    assert not version.holds(StoredFile(sha256="0" * 64, bytes=1))
    before = version.file(stored).stamp()
    assert version.send(source, EXPECTED) == stored
    assert version.file(stored).stamp() == before


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
    def upload(target: RemotePath, _source: Path, *, new: bool) -> None:
        target.write(content, new=new)

    monkeypatch.setattr(RemotePath, "upload", upload)
    with pytest.raises(
        DestinationError, match=r"does not hold what was sent \(17 bytes of rows\.bin\); remove it"
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
