"""Which objects of a store are removed: those that no version names, once they are old enough."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bundle.format.objects import ObjectMap, StoredFile
from export.errors import DestinationError
from export.jobs.store_cleaning import clean_store
from object_store.locations import located
from object_store.remote_path import RemotePath

DAY_S = 86_400
NAMED = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> RemotePath:
    place = located(f"local://{tmp_path}/store")
    assert isinstance(place, RemotePath)
    return place


def written(store: RemotePath, path: str, days: float, content: bytes = b"x") -> RemotePath:
    """Writes a file that is so many days old."""
    file = store / path
    file.write(content)
    then = time.time() - days * DAY_S
    os.utime(Path(file.url.removeprefix("local://")), (then, then))
    return file


def committed(store: RemotePath, version: int, days: float = 30) -> RemotePath:
    """Writes a version that names one object; returns that object."""
    files = {"manifest.json": StoredFile(sha256=NAMED, bytes=1)}
    page = ObjectMap(model="m", version=version, files=files).dump()
    written(store, f"m/{version}/objects.json", days, page)
    return written(store, f"m/{version}/objects/{NAMED}", days)


def test_clean_store_removes_old_objects_that_a_version_does_not_name(store: RemotePath) -> None:
    named = committed(store, 1)
    old = [written(store, f"m/1/objects/{name}", 8) for name in "ab"]
    fresh = written(store, "m/1/objects/c", 6)
    assert clean_store(store) == (old, [])
    assert [file.is_file() for file in (named, fresh, *old)] == [True, True, False, False]
    assert clean_store(store, 5) == ([fresh], [])
    assert clean_store(store, 5) == ([], [])
    assert list(store.listing()) == ["m"]  # the file that told the time is gone


def test_clean_store_removes_what_runs_left_that_were_given_up(store: RemotePath) -> None:
    given_up = [written(store, f"m/{path}", 8) for path in ("2/started", "2/objects/a")]
    resumed = [written(store, "m/10/started", 1), written(store, "m/10/objects/a", 8)]
    removed, kept = clean_store(store)
    assert sorted(map(str, removed)) == sorted(map(str, given_up))
    assert kept == [store / "m" / "10"]
    assert all(file.is_file() for file in resumed)


def test_clean_store_passes_over_what_is_no_version_of_a_model(store: RemotePath) -> None:
    others = [
        written(store, path, 30)
        for path in (".hidden/1/objects/a", "m/latest/objects/a", "m/01/objects/a")
    ]
    # A bundle that was copied as it lies on a disk.
    written(store, "m/3/manifest.json", 30)
    others.append(written(store, "m/3/objects/a", 30))
    assert clean_store(store) == ([], [])
    assert all(file.is_file() for file in others)


def test_clean_store_goes_through_versions_in_their_order(store: RemotePath) -> None:
    old = []
    for version in (2, 10, 9):
        committed(store, version)
        old.append(written(store, f"m/{version}/objects/a", 8))
    old[1:] = reversed(old[1:])
    assert clean_store(store) == (old, [])


def test_clean_store_leaves_a_version_whose_objects_are_not_known(store: RemotePath) -> None:
    written(store, "m/1/objects.json", 30, b"{}")
    kept = written(store, "m/1/objects/a", 30)
    with pytest.raises(
        DestinationError,
        match=r"m/1/objects\.json: objects\.json: .*; nothing of this version was removed",
    ):
        clean_store(store)
    assert kept.is_file()


def test_clean_store_of_a_store_that_tells_no_times_removes_nothing(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(store, 1)
    kept = written(store, "m/1/objects/a", 30)
    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "modified_s", lambda _: None)
        with pytest.raises(DestinationError, match="does not tell when a file was written, so"):
            clean_store(store)
    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "times", lambda path: dict.fromkeys(path.listing()))
        assert clean_store(store) == ([], [])
    assert kept.is_file()
    assert list(store.listing()) == ["m"]


def test_clean_store_of_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    place = located(f"local://{tmp_path}/store/bundles")
    assert isinstance(place, RemotePath)
    with pytest.raises(DestinationError, match="Not a directory"):
        clean_store(place)
