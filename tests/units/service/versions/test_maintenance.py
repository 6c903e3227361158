"""The scrub and the prefetch of versions that are served, and reports of their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.units.service.running import flip
from tests.units.service.versions.driven import Driven, Write

Drive = Callable[..., Driven]


def scrubbed(driven: Driven) -> float:
    return driven.value("rowcast_scrubbed_bytes_total", model="movies")


@pytest.mark.parametrize("keeps_previous", [True, False])
def test_scrub_damaged_version_is_replaced_by_the_previous_one(
    write: Write, drive: Drive, keeps_previous: bool
) -> None:
    write()
    driven = drive()
    newer = write(version=2)
    driven = driven if keeps_previous else drive()
    driven.scan()
    flip(next((newer.directory / "tables/users").iterdir()))
    driven.poller.maintenance.scrub()
    assert driven.states() == ({2: "failed", 1: "available"} if keeps_previous else {2: "failed"})
    driven.scan()
    assert driven.states() == {2: "failed", 1: "available"}
    assert "differs from its checksum" in driven.problem(2)


@pytest.mark.parametrize(
    "file",
    ["users/rows-00000-of-00001", "movies/rows-00001-of-00002", "movies/scales-00001-of-00002"],
)
def test_scrub_reads_each_byte_once_and_finds_one_that_is_flipped(
    write: Write, drive: Drive, file: str
) -> None:
    small = write(row_types={"users": "linked", "movies": "int8"})
    driven = drive(verify="full")
    driven.poller.maintenance.scrub()
    driven.poller.maintenance.scrub()
    assert driven.states() == {1: "available"}
    assert scrubbed(driven) == sum(table.bytes for table in small.manifest.tables.values())
    restarted = drive()
    flip(small.directory / f"tables/{file}.bin", position=50)
    restarted.poller.maintenance.scrub()
    for worker in (restarted, drive(verify="full")):
        assert f"tables/{file}.bin' differs from its checksum" in worker.problem(1)


def prefetched(driven: Driven) -> float:
    return driven.value("rowcast_prefetched_bytes_total", model="movies")


def test_prefetch_reads_whole_tables_the_smallest_first_and_once(
    write: Write, drive: Drive
) -> None:
    *smaller, largest = sorted(table.bytes for table in write().manifest.tables.values())
    driven = drive(prefetch_max_bytes=sum(smaller) + largest - 1, prefetch_bytes_per_s=1 << 40)
    for _ in range(2):
        driven.poller.maintenance.prefetch()
        assert sum(smaller) <= prefetched(driven) < sum(smaller) + largest
    write(version=2)
    driven.scan()
    prefetched_before = prefetched(driven)
    driven.poller.maintenance.prefetch()
    assert prefetched(driven) > prefetched_before
