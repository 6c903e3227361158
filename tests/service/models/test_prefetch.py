"""Tables read into memory after a load."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from service.models.prefetch import Prefetcher
from tests.service.models.driven import Driven, Write, until

Drive = Callable[..., Driven]
FAST = 1 << 40


def prefetched(driven: Driven) -> float:
    return driven.value("rowcast_prefetched_bytes_total", model="movies")


def sizes(driven: Driven) -> list[int]:
    current = driven.manager.current("movies")
    assert current is not None
    return sorted(table.bytes for table in current.manifest.tables.values())


def test_prefetch_reads_whole_tables_the_smallest_first(
    write: Write, drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    write()
    driven = drive()
    *smaller, largest = sizes(driven)
    with caplog.at_level("INFO", "rowcast"):
        Prefetcher(driven.manager, driven.metrics, sum(smaller) + largest - 1, FAST).prefetch()
    assert sum(smaller) <= prefetched(driven) < sum(smaller) + largest
    assert [each.message for each in caplog.records if "prefetch" in each.message] == ["version_prefetched"]


def test_prefetch_reads_each_version_once(write: Write, drive: Drive) -> None:
    write()
    driven = drive()
    prefetcher = Prefetcher(driven.manager, driven.metrics, FAST, FAST)
    prefetcher.prefetch()
    once = prefetched(driven)
    assert once >= sum(sizes(driven))
    prefetcher.prefetch()
    assert prefetched(driven) == once
    write(version=2)
    driven.scan()
    prefetcher.prefetch()
    assert prefetched(driven) > once


def test_prefetch_that_is_stopped_ends_after_a_chunk(write: Write, drive: Drive) -> None:
    write()
    driven = drive()
    prefetcher = Prefetcher(driven.manager, driven.metrics, FAST, FAST)
    prefetcher.stop()
    prefetcher.prefetch()
    assert 0 < prefetched(driven) < sum(sizes(driven))


def test_start_prefetches_each_version_that_comes(write: Write, drive: Drive) -> None:
    write()
    driven = drive()
    Prefetcher(driven.manager, driven.metrics, 0, FAST).start()
    prefetcher = Prefetcher(driven.manager, driven.metrics, FAST, FAST)
    prefetcher.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "rowcast-prefetch"]
    write(version=2)
    driven.scan()
    until(lambda: prefetched(driven) >= sum(sizes(driven)))
    prefetcher.stop()
    thread.join(10)
    assert not thread.is_alive()
