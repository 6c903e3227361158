"""Versions with deltas, which are merged into whole files while they are served."""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.storage import catalog, lock
from bundle.tables.shard_number import ShardNumber
from bundle.tables.whole_segments import unmerged_segments
from service.versions.merger import LOCK, RETRY_S, UNUSED_S, Merger
from service.versions.segment_merging import merge
from tests.bundles.deltas import add_deltas
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S
from tests.units.service.running import flip, log_lines
from tests.units.service.versions.driven import Driven, Write

pytestmark = pytest.mark.slow

Drive = Callable[..., Driven]
RATE = 1 << 40
"""Bytes per second: without pauses."""
ROW_TYPES = {"movies": "int8"}


@pytest.fixture
def write_divided(write: Write) -> Write:
    """Writes small bundles whose segments have deltas."""

    def write_one(**options: object) -> SmallBundle:
        small = write(**options)
        add_deltas(small.directory)
        return small

    return write_one


def whole_files(small: SmallBundle) -> set[str]:
    return {
        path.relative_to(small.directory).as_posix()
        for path in (small.directory / paths.WHOLE).rglob("*")
        if path.is_file()
    }


def expected_files(small: SmallBundle) -> set[str]:
    manifest = catalog.read_manifest(small.directory)
    return {
        unmerged.file for table in manifest.tables.values() for unmerged in unmerged_segments(table)
    }


def check_content(small: SmallBundle) -> None:
    """Checks that each file that has a name has the content of this name."""
    for file in whole_files(small):
        path = small.directory / file
        if not path.name.startswith("."):
            assert crc32c(path.read_bytes()) == int(path.name[-8:], 16)


def rows_of(driven: Driven, version: int | None = None) -> dict[str, bytes]:
    with driven.manager.acquire("movies", version) as leased:
        return {
            name: table.take(np.arange(table.rows)).tobytes()
            for name, table in leased.tables.items()
        }


def unmerged(driven: Driven) -> float:
    return driven.value("rowcast_model_unmerged_bytes", model="movies")


def test_a_version_with_deltas_is_served_at_once_and_from_whole_files_once_it_is_merged(
    write: Write, write_divided: Write, drive: Drive
) -> None:
    write(row_types=ROW_TYPES)
    expected = rows_of(drive())
    small = write_divided(row_types=ROW_TYPES, version=2)
    plain = write(row_types=ROW_TYPES, version=3)
    driven = drive(merge_bytes_per_s=RATE, latest_versions=2)
    assert driven.serving() == 3
    expected = rows_of(driven, 2)
    np.testing.assert_array_equal(
        np.frombuffer(expected["users"], np.float32).reshape(-1, 8), small.tables["users"]
    )

    # Requests read on while files are replaced.
    ended = threading.Event()
    different: list[dict[str, bytes]] = []

    def read() -> None:
        while not ended.is_set():
            different.extend(rows for rows in [rows_of(driven, 2)] if rows != expected)

    reading = threading.Thread(target=read)
    reading.start()
    driven.poller.maintenance.merger.run()
    ended.set()
    reading.join()
    assert not different
    assert whole_files(small) == expected_files(small)
    assert not whole_files(plain)
    check_content(small)
    restarted = drive(merge_bytes_per_s=0, latest_versions=2)
    restarted.poller.maintenance.merger.run()
    # Nothing is read from the base and the deltas any more.
    shutil.rmtree(small.directory / "tables")
    for running in (driven, restarted):
        assert unmerged(running) == 0
        assert rows_of(running, 2) == expected


def test_a_root_without_deltas_gets_no_file(write: Write, drive: Drive) -> None:
    root = write().directory.parents[1]
    files = sorted(root.iterdir())
    drive(merge_bytes_per_s=RATE).poller.maintenance.merger.run()
    assert sorted(root.iterdir()) == files


def test_a_shard_merges_the_segments_that_it_reads(write_divided: Write, drive: Drive) -> None:
    small = write_divided(row_types=ROW_TYPES)
    options = {"shard_min_bytes": 1, "merge_bytes_per_s": RATE}
    shard = drive(shard=ShardNumber(2, 2), worker=2, **options)
    before = rows_of(shard)
    shard.poller.maintenance.merger.run()
    assert unmerged(shard) == 0
    assert rows_of(shard) == before
    assert whole_files(small) < expected_files(small)
    whole = small.tables["users"]
    assert before["users"] == whole[len(whole) // 2 :].tobytes()


def test_one_process_merges_and_the_others_map_what_it_wrote(
    write_divided: Write, drive: Drive, root: Path
) -> None:
    small = write_divided()
    merging = drive(merge_bytes_per_s=RATE)
    waiting = drive(merge_bytes_per_s=RATE)
    descriptor = lock.acquire(root / LOCK, "a test")
    waiting.poller.maintenance.merger.run()
    assert unmerged(waiting) > 0
    assert not whole_files(small)
    os.close(descriptor)
    merging.poller.maintenance.merger.run()
    descriptor = lock.acquire(root / LOCK, "a test")
    waiting.poller.maintenance.merger.run()
    os.close(descriptor)
    assert unmerged(waiting) == 0


def test_damage_that_is_found_while_a_version_is_merged_ends_it(
    write: Write, write_divided: Write, drive: Drive
) -> None:
    write()
    driven = drive(merge_bytes_per_s=RATE)
    small = write_divided(version=2)
    driven.scan()
    assert driven.serving() == 2
    delta = catalog.read_manifest(small.directory).tables["users"].segments[0].deltas[1]
    path = small.directory / delta.file
    content = bytearray(path.read_bytes())
    # Rows lie at the next multiple of 64 behind their numbers, in the second record.
    content[300:360] = bytes(60)
    path.write_bytes(content)
    driven.poller.maintenance.merger.run()
    assert driven.states() == {2: "failed", 1: "available"}
    assert f"delta {delta.file!r}" in driven.problem(2)
    assert not [file for file in whole_files(small) if "users" in file]


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def merger_of(driven: Driven, clock: Clock) -> Merger:
    """Returns a merger of the versions that are served, with a clock of its own."""

    def report_damage(_: object, problem: Exception) -> None:
        raise problem

    def ignore(_: object) -> None:
        pass

    settings = driven.settings
    stopping = threading.Event()
    return Merger(settings, driven.manager, driven.metrics, stopping, report_damage, ignore, clock)


@contextmanager
def full_disk(_small: SmallBundle) -> Iterator[None]:
    """Lets this process, and those that it starts, write no file of more than 100 bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def no_directory(small: SmallBundle) -> Iterator[None]:
    """Lets no directory of whole files be made."""
    path = small.directory / paths.WHOLE
    path.write_bytes(b"")
    try:
        yield
    finally:
        path.unlink()


OBSTACLES = {"File too large": full_disk, "Not a directory": no_directory}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_disk_that_takes_no_files_is_logged_once_and_tried_again_later(
    write_divided: Write, drive: Drive, obstacle: str
) -> None:
    small = write_divided()
    driven = drive(merge_bytes_per_s=RATE)
    expected = rows_of(driven)
    clock = Clock()
    merger = merger_of(driven, clock)
    with log_lines() as lines:
        with OBSTACLES[obstacle](small):
            merger.run()
            clock.now += RETRY_S
            merger.run()
        assert rows_of(driven) == expected
        assert unmerged(driven) > 0
        # The second pause is twice as long.
        clock.now += RETRY_S
        merger.run()
        assert unmerged(driven) > 0
        clock.now += RETRY_S
        merger.run()
    assert unmerged(driven) == 0
    assert whole_files(small) == expected_files(small)
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    names = [event["event"] for event in events]
    assert names == ["merge_postponed", "version_merged"]
    assert obstacle in events[0]["problem"]


def test_a_disk_without_room_for_a_segment_and_a_reserve_is_not_written_to(
    write_divided: Write,
) -> None:
    small = write_divided()
    files = {
        unmerged.segment.file
        for table in catalog.read_manifest(small.directory).tables.values()
        for unmerged in unmerged_segments(table)
    }
    with pytest.raises(
        OSError, match=r"\d+ bytes are free, \d+ and 1152921504606846976 in reserve"
    ):
        merge(small.directory, files, lambda _: None, reserve_bytes=1 << 60)
    assert not whole_files(small)


@pytest.mark.parametrize("end", ["unloaded", "stopped"])
def test_merging_ends_with_the_version_or_the_service(
    write: Write, write_divided: Write, drive: Drive, end: str
) -> None:
    small = write_divided()
    # A piece, then hours of pause.
    driven = drive(merge_bytes_per_s=1, keep_previous=False)
    write(version=2)
    merging = threading.Thread(target=driven.poller.maintenance.merger.run)
    merging.start()
    while not whole_files(small):
        time.sleep(0.01)
    if end == "unloaded":
        driven.scan()
        assert driven.states() == {2: "available"}
    else:
        driven.poller.stop()
    merging.join(WAIT_S)
    assert not merging.is_alive()
    check_content(small)
    # Rolled back to, the version is merged to its end.
    driven.manager.close()
    restarted = drive(merge_bytes_per_s=RATE)
    restarted.want(pinned=[1])
    restarted.scan()
    assert restarted.serving() == 1
    restarted.poller.maintenance.merger.run()
    assert whole_files(small) == expected_files(small)
    check_content(small)


def test_a_process_that_dies_is_logged_and_replaced(write_divided: Write, drive: Drive) -> None:
    small = write_divided()
    # A piece, then hours of pause.
    driven = drive(merge_bytes_per_s=1)
    with log_lines() as lines:
        merging = threading.Thread(target=driven.poller.maintenance.merger.run)
        merging.start()
        while not whole_files(small):
            time.sleep(0.01)
        for process in psutil.Process().children():
            if "service.versions.segment_merging" in process.cmdline():
                process.kill()
        merging.join(WAIT_S)
    assert not merging.is_alive()
    (event,) = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert (event["event"], event["level"]) == ("merge_postponed", "warning")
    assert "SIGKILL" in event["problem"]
    check_content(small)
    restarted = drive(merge_bytes_per_s=RATE)
    restarted.poller.maintenance.merger.run()
    assert unmerged(restarted) == 0
    assert whole_files(small) == expected_files(small)


@pytest.mark.parametrize("verify", ["sizes", "full"])
def test_a_whole_file_that_is_damaged_later_is_removed_and_the_deltas_are_read(
    write_divided: Write, drive: Drive, verify: str
) -> None:
    small = write_divided(row_types=ROW_TYPES)
    merging = drive(merge_bytes_per_s=RATE)
    expected = rows_of(merging)
    merging.poller.maintenance.merger.run()
    merging.manager.close()
    flip(small.directory / min(whole_files(small)), position=3)
    restarted = drive(merge_bytes_per_s=0, verify=verify)
    restarted.poller.maintenance.scrub()
    if verify == "sizes":
        assert restarted.states() == {1: "failed"}
        assert "was removed" in restarted.problem(1)
        # It is loaded again as soon as failed versions are tried again, as after a minute.
        restarted.poller.look_again()
        restarted.scan()
    assert restarted.states() == {1: "available"}
    assert rows_of(restarted) == expected
    assert len(whole_files(small)) == len(expected_files(small)) - 1


def test_whole_files_of_a_version_that_nobody_has_loaded_are_removed_after_a_while(
    write: Write, write_divided: Write, drive: Drive
) -> None:
    small = write_divided()
    user = drive(merge_bytes_per_s=RATE)
    user.poller.maintenance.merger.run()
    write(version=2)
    driven = drive(merge_bytes_per_s=RATE)
    clock = Clock()
    merger = merger_of(driven, clock)
    for is_used in (True, False):
        merger.run()
        clock.now += UNUSED_S - 1
        merger.run()
        assert whole_files(small) == expected_files(small)
        clock.now += 1
        merger.run()
        assert bool(whole_files(small)) == is_used
        user.manager.close()
    driven.want(pinned=[1])
    driven.scan()
    assert driven.serving() == 1
    np.testing.assert_array_equal(
        np.frombuffer(rows_of(driven)["users"], np.float32), small.tables["users"].reshape(-1)
    )
