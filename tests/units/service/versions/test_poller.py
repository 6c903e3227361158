"""Versions that come, go, break and change under the root while others are served."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.coordinator import Coordinator
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.bundles.small import SmallBundle
from tests.units.service.running import flip
from tests.units.service.versions.driven import Driven, Write, touch

Drive = Callable[..., Driven]


def test_scan_new_version_replaces_the_old_one_which_is_kept_if_wanted(
    write: Write, drive: Drive
) -> None:
    for version in (1, 2, 10):
        write(version=version)
    driven = drive()
    assert driven.states() == {10: "available"}
    write(version=11)
    driven.scan()
    assert driven.serving() == 11
    assert driven.states() == {11: "available", 10: "kept"}
    driven = drive(keep_previous=False)
    with driven.manager.acquire("movies"):
        flip(write(version=13).directory / "indexes/movies/vectors.bin")
        write(version=12)
        driven.scan()
        assert driven.states() == {13: "failed", 12: "available", 11: "retiring"}
        for state in ("failed", "available", "retiring"):
            assert driven.value("rowcast_versions", model="movies", state=state) == 1
        assert driven.value("rowcast_current_version", model="movies") == 12
    assert driven.serving() == 12


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda small: flip(small.directory / "indexes/movies/vectors.bin"), "vectors.bin"),
        (
            lambda small: os.truncate(next((small.directory / "tables/users").iterdir()), 64),
            "tables/users",
        ),
        (lambda small: (small.directory / "manifest.json").write_bytes(b"{"), "manifest"),
    ],
)
def test_scan_broken_new_version_is_reported_and_the_old_one_stays(
    write: Write, drive: Drive, damage: Callable[[SmallBundle], None], problem: str
) -> None:
    write()
    driven = drive()
    damage(write(version=2))
    driven.scan()
    assert driven.serving() == 1
    assert driven.states() == {2: "failed", 1: "available"}
    assert problem in driven.problem(2)
    assert driven.value("rowcast_loads_total", model="movies", outcome="failed") == 1


def test_scan_at_start_falls_back_from_broken_versions(
    write: Write, drive: Drive, root: Path
) -> None:
    write()
    write(version=2)
    for version in (3, 4):
        flip(write(version=version).directory / "indexes/movies/vectors.bin")
    driven = drive()
    before = driven.manager.loaded()[0]
    assert driven.states() == {4: "failed", 3: "failed", 2: "available"}
    driven.scan()
    assert driven.manager.loaded()[0] is before, "nothing is loaded again"
    shutil.rmtree(root / "movies/4")
    driven.scan()
    assert driven.states() == {3: "failed", 2: "available"}


def test_scan_version_written_again_replaces_itself_and_one_that_is_removed_stays(
    write: Write, drive: Drive
) -> None:
    first = write()
    driven = drive()
    shutil.rmtree(first.directory)
    driven.scan()
    assert driven.serving() == 1
    write(size=30)
    touch(first.directory / "manifest.json")
    driven.scan()
    with driven.manager.acquire("movies") as version:
        assert version.corpora["movies"].entry.size == 30


def test_scan_ignores_staging_and_foreign_files_and_names_foreign_directories_once(
    write: Write, drive: Drive, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = write()
    shutil.copytree(small.directory, root / "movies" / ".staging-2")
    shutil.copytree(small.directory, root / "movies" / "latest")
    (root / "movies" / "3").mkdir()
    (root / "movies" / "notes.txt").touch()
    (root / "notes.txt").touch()
    (root / ".hidden").mkdir()
    (root / "no bundles here").mkdir()
    (root / "songs").mkdir()
    driven = drive()
    driven.poller.scan()
    assert {name: driven.states(name) for name in driven.manager.models()} == {
        "movies": {1: "available"}
    }
    named = [
        record.__dict__["rowcast_fields"]["directory"]
        for record in caplog.records
        if record.message == "directory_ignored"
    ]
    assert named == ["movies/latest", "no bundles here", "songs"]


def test_scan_keeps_the_memory_of_the_previous_version_only_while_there_is_room(
    write: Write, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    driven = drive()
    write(version=2)
    driven.scan()
    monkeypatch.setattr(
        "service.versions.loader.free_bytes",
        lambda: 0 if driven.states().get(1) == "kept" else 1 << 40,
    )
    write(version=3)
    driven.scan()
    assert driven.states() == {3: "available", 2: "kept"}
    monkeypatch.setattr("service.versions.loader.free_bytes", lambda: 0)
    write(version=4, size=4000)
    driven.scan()
    assert driven.states() == {4: "failed", 3: "available", 2: "kept"}, (
        "the kept one would not free enough memory"
    )
    assert (
        "MiB of memory in addition to its tables in each process, 0 MiB are free"
        in driven.problem(4)
    )


def test_scan_loads_in_one_worker_while_the_others_serve(write: Write, drive: Drive) -> None:
    write(version=1)
    loading = threading.Lock()

    def warm_up(version: ModelVersion, throttle: LoadThrottle) -> None:
        assert loading.acquire(blocking=False), "two workers load at once"
        time.sleep(0.05)
        loading.release()

    options = {"warm_up": warm_up, "coordinator": Coordinator()}
    workers = drive(worker=1, **options), drive(worker=2, **options)
    write(version=2)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Driven.scan, workers))
    for worker in workers:
        worker.poller.follow()
    assert [worker.serving() for worker in workers] == [2, 2]
