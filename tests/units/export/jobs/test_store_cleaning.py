"""Which objects of a store are removed: those that no version names, once they are old enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.format.objects import ObjectMap, StoredFile, WholeFile, pool_path
from export.errors import DestinationError
from export.jobs import store_cleaning
from export.jobs.store_cleaning import clean_store
from export.jobs.store_versions import StoreVersion
from object_store.locations import location_of
from object_store.remote_path import RemotePath

DAY_S = 86_400
NAMED = "0" * 64
OTHER = "1" * 64


@pytest.fixture
def store(tmp_path: Path) -> RemotePath:
    root = location_of(f"local://{tmp_path}/store")
    assert isinstance(root, RemotePath)
    return root


def written(store: RemotePath, path: str, days: float, content: bytes = b"x") -> RemotePath:
    """Writes a file that is `days` old."""
    file = store / path
    file.write(content)
    then = time.time() - days * DAY_S
    os.utime(Path(file.url.removeprefix("local://")), (then, then))
    return file


def in_pool(store: RemotePath, name: str, days: float, model: str = "m") -> RemotePath:
    """Writes an object that versions may share."""
    return written(store, f"{model}/{pool_path(name)}", days)


def committed(store: RemotePath, version: int, name: str = NAMED, model: str = "m") -> None:
    """Writes a version that names an object."""
    files = {"manifest.json": StoredFile(bytes=1, objects=(name,))}
    page = ObjectMap(model=model, version=version, files=files).dump()
    written(store, f"{model}/{version}/objects.json", 30, page)


def committed_in_format_1(store: RemotePath, version: int) -> RemotePath:
    """Writes a version of format 1 that names one object; returns that object."""
    files = {"manifest.json": WholeFile(sha256=NAMED, bytes=1)}
    page = ObjectMap(format_version=1, model="m", version=version, files=files).dump()
    written(store, f"m/{version}/objects.json", 30, page)
    return written(store, f"m/{version}/objects/{NAMED}", 30)


def test_clean_store_removes_old_objects_that_no_version_names(store: RemotePath) -> None:
    committed(store, 1)
    committed(store, 2, OTHER)
    named = [in_pool(store, name, 30) for name in (NAMED, OTHER)]
    old = [in_pool(store, name, 8) for name in ("00" + "a" * 62, "ff" + "b" * 62)]
    fresh = in_pool(store, "c" * 64, 6)
    assert clean_store(store) == (old, [])
    assert [file.is_file() for file in (*named, fresh, *old)] == [True, True, True, False, False]
    assert clean_store(store, 5) == ([fresh], [])
    assert clean_store(store, 5) == ([], [])
    assert set(store.listing()) == {"m"}  # the file that showed the store's time is gone


def test_clean_store_keeps_an_object_until_no_version_names_it(store: RemotePath) -> None:
    shared = in_pool(store, NAMED, 30)
    for version in (1, 2):
        committed(store, version)
    for version in (1, 2):
        assert clean_store(store) == ([], [])
        (store / f"m/{version}/objects.json").remove()
    assert clean_store(store) == ([shared], [])


def test_clean_store_removes_nothing_of_a_model_that_a_run_writes(store: RemotePath) -> None:
    committed(store, 1)
    old = in_pool(store, OTHER, 8)
    elsewhere = in_pool(store, OTHER, 8, "n")
    started = written(store, "m/10/started", 6)
    assert clean_store(store) == ([elsewhere], [store / "m/10"])
    assert old.is_file()
    # A run that was given up, and one that may go on with the version meanwhile.
    written(store, "m/10/started", 8)
    assert clean_store(store) == ([old], [])
    assert started.is_file()


@pytest.mark.parametrize("begins", [True, False], ids=["begins", "commits"])
def test_clean_store_removes_nothing_if_a_run_begins_or_commits_meanwhile(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    committed(store, 1)
    old = in_pool(store, OTHER, 8)
    later = StoreVersion(store / "m/2")

    def run() -> None:
        if begins:
            later.begin()
        else:
            committed(store, 2, OTHER)

    _after_listing(monkeypatch, run)
    assert clean_store(store) == ([], [store / "m/2"] if begins else [])
    assert old.is_file()


def _after_listing(monkeypatch: pytest.MonkeyPatch, run: Callable[[], None]) -> None:
    """Has something happen once the last objects of the pool were listed."""
    times = RemotePath.times

    def list_and_run(directory: RemotePath) -> dict[str, float | None]:
        listed = times(directory)
        if directory.name == "ff":
            run()
        return listed

    monkeypatch.setattr(RemotePath, "times", list_and_run)


def test_clean_store_stops_when_a_run_begins_while_it_removes(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_cleaning, "_REMOVED_AT_A_TIME", 1)
    old = [in_pool(store, f"{number}" * 64, 8) for number in range(3)]
    remove = RemotePath.remove

    def remove_and_begin(file: RemotePath) -> None:
        remove(file)
        if file in old:
            StoreVersion(store / "m/1").begin()

    monkeypatch.setattr(RemotePath, "remove", remove_and_begin)
    assert clean_store(store) == (old[:1], [store / "m/1"])
    assert [file.is_file() for file in old] == [False, True, True]


def test_clean_store_removes_what_versions_of_format_1_do_not_name(store: RemotePath) -> None:
    old = []
    named = []
    for version in (2, 10, 9):
        named.append(committed_in_format_1(store, version))
        old.append(written(store, f"m/{version}/objects/a", 8))
    old[1:] = reversed(old[1:])
    given_up = written(store, "m/11/objects/a", 8)
    fresh = written(store, "m/9/objects/b", 6)
    assert clean_store(store) == ([given_up, *old], [])
    assert all(file.is_file() for file in (*named, fresh))


def test_clean_store_passes_over_what_is_no_version_of_a_model(store: RemotePath) -> None:
    unrelated = [
        written(store, path, 30)
        for path in (".hidden/1/objects/a", "m/latest/objects/a", "m/01/objects/a")
    ]
    # A bundle that was copied as it lies on a disk.
    written(store, "m/3/manifest.json", 30)
    unrelated.append(written(store, "m/3/objects/a", 30))
    assert clean_store(store) == ([], [])
    assert all(file.is_file() for file in unrelated)


def test_clean_store_leaves_a_model_whose_objects_are_not_known(store: RemotePath) -> None:
    written(store, "m/1/objects.json", 30, b"{}")
    young = in_pool(store, OTHER, 30)
    with pytest.raises(
        DestinationError,
        match=r"m/1/objects\.json: objects\.json: .*; nothing of this model was removed",
    ):
        clean_store(store)
    assert young.is_file()


def test_clean_store_of_a_store_that_tells_no_times_removes_nothing(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(store, 1)
    old = in_pool(store, OTHER, 30)
    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "modified_s", lambda _: None)
        with pytest.raises(DestinationError, match="does not report when a file was written, so"):
            clean_store(store)
    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "times", lambda path: dict.fromkeys(path.listing()))
        assert clean_store(store) == ([], [])
    assert old.is_file()
    assert set(store.listing()) == {"m"}


def test_clean_store_of_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    root = location_of(f"local://{tmp_path}/store/bundles")
    assert isinstance(root, RemotePath)
    with pytest.raises(DestinationError, match="Not a directory"):
        clean_store(root)
