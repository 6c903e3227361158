from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from service.generations.warming import Warming
from tests.service.running import Running
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
FAST = 1 << 40


def warmed(service: Running) -> float:
    return service.value("rowcast_warmed_bytes_total", model="movies")


def sizes(service: Running) -> list[int]:
    current = service.switch.current("movies")
    assert current is not None
    return sorted(table.bytes for table in current.manifest.tables.values())


def test_whole_tables_are_warmed_the_smallest_first(write: Write, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    write()
    service = run()
    *smaller, largest = sizes(service)
    with caplog.at_level("INFO", "rowcast"):
        Warming(service.switch, service.metrics, sum(smaller) + largest - 1, FAST).warm()
    assert sum(smaller) <= warmed(service) < sum(smaller) + largest
    fields = [record.__dict__["rowcast_fields"] for record in caplog.records if record.message == "tables_warmed"]
    assert [(each["version"], each["tables_left"]) for each in fields] == [(1, 1)]


def test_each_version_is_warmed_once(write: Write, run: Run) -> None:
    write()
    service = run()
    warming = Warming(service.switch, service.metrics, 1 << 40, FAST)
    warming.warm()
    once = warmed(service)
    assert once >= sum(sizes(service))
    warming.warm()
    assert warmed(service) == once
    write(version=2)
    service.scan()
    warming.warm()
    assert warmed(service) > once


def test_warming_that_is_stopped_ends_after_a_piece(write: Write, run: Run) -> None:
    write()
    service = run()
    warming = Warming(service.switch, service.metrics, 1 << 40, FAST)
    warming.stop()
    warming.warm()
    assert 0 < warmed(service) < sum(sizes(service))


def test_thread_warms_what_comes_and_ends(write: Write, run: Run) -> None:
    write()
    service = run()
    warming = Warming(service.switch, service.metrics, 1 << 40, FAST)
    warming.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "rowcast-warming"]
    write(version=2)
    service.scan()
    waited = threading.Event()
    for _ in range(600):
        if warmed(service) >= sum(sizes(service)):
            break
        waited.wait(0.05)
    assert warmed(service) >= sum(sizes(service))
    warming.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_nothing_is_begun_where_nothing_is_to_be_warmed(run: Run) -> None:
    service = run()
    Warming(service.switch, service.metrics, 0, FAST).start()
    assert not [each for each in threading.enumerate() if each.name == "rowcast-warming"]
