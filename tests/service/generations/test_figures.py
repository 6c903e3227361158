"""What metrics tell of loaded versions."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.service.running import Running
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def test_loaded_version_tells_since_when_and_of_what_size_it_is(write: Write, run: Run) -> None:
    before = time.time()
    write()
    service = run()
    labels = {"model": "movies", "version": "1"}
    assert before <= service.value("rowcast_version_loaded_timestamp_seconds", **labels) <= time.time()
    current = service.switch.current("movies")
    assert current is not None
    assert service.value("rowcast_version_memory_bytes", **labels) == current.memory_bytes
    files = sum(
        (current.directory / shard.file).stat().st_size
        for table in current.manifest.tables.values()
        for shard in (*table.shards, *table.scales)
    )
    assert service.value("rowcast_version_table_bytes", **labels) == files
    assert service.value("rowcast_version_resident_table_bytes", **labels) > 0


def test_version_that_is_gone_is_told_no_more(write: Write, run: Run) -> None:
    write()
    service = run(keep_previous=False)
    write(version=2)
    service.scan()
    name = "rowcast_version_table_bytes"
    assert service.metrics.registry.get_sample_value(name, {"model": "movies", "version": "1"}) is None
    assert service.value(name, model="movies", version="2") > 0
