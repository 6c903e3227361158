"""A desired state followed by a running service: pins, labels, rollbacks, loads,
unloads, a drain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import NotReady
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.e2e.process import WAIT_S
from tests.units.service.versions.driven import Driven, Write

Drive = Callable[..., Driven]


@pytest.fixture
def two(write: Write, drive: Drive) -> Driven:
    """Serves version 2; 1 is kept."""
    write()
    driven = drive()
    write(version=2)
    driven.scan()
    assert driven.serving() == 2
    return driven


def test_rollback_takes_effect_at_once_and_lasts_until_a_newer_version_comes(
    two: Driven, write: Write
) -> None:
    loads = two.value("rowcast_loads_total", model="movies", outcome="available")
    two.want(rolled_back={"to": 1, "above": 2})
    assert two.serving() == 1
    assert two.states() == {2: "kept", 1: "available"}
    two.scan()
    assert two.serving() == 1
    assert two.value("rowcast_loads_total", model="movies", outcome="available") == loads
    write(version=3)
    two.scan()
    assert two.serving() == 3
    assert two.states() == {3: "available", 1: "kept"}


def test_version_missing_from_the_root_is_reported_until_it_comes(
    two: Driven, drive: Drive, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two.want(pinned=(1,))
    aside = (root / "movies/1").rename(root / ".aside")
    restarted = drive()
    restarted.scan()
    assert restarted.states() == {1: "failed"}
    assert "not under the root" in restarted.problem(1)
    assert [record.msg for record in caplog.records].count("version_failed") == 1
    with pytest.raises(NotReady, match="list of models says why"):
        restarted.serving()
    aside.rename(root / "movies/1")
    restarted.scan()
    assert (restarted.serving(), restarted.problem(1)) == (1, "")


def test_damaged_state_file_changes_nothing_in_a_running_service_and_loads_nothing_at_a_start(
    two: Driven, write: Write, drive: Drive
) -> None:
    two.want(pinned=(1,))
    good = two.state.path.read_bytes()
    two.state.path.write_bytes(good[:-9])
    write(version=3)
    two.scan()
    assert (two.serving(), two.value("rowcast_desired_state_readable")) == (1, 0)
    assert "damaged" in two.poller.state.problem
    restarted = drive()
    assert restarted.manager.models() == {}
    with pytest.raises(NotReady, match="damaged"):
        restarted.serving()
    two.state.path.write_bytes(good)
    for driven in (two, restarted):
        driven.scan()
        assert (driven.serving(), driven.value("rowcast_desired_state_readable")) == (1, 1)


def test_rollback_does_not_wait_for_a_load_in_progress(two: Driven, write: Write) -> None:
    loading = threading.Event()
    go_on = threading.Event()

    def slow(version: ModelVersion, throttle: LoadThrottle) -> None:
        loading.set()
        assert go_on.wait(WAIT_S)

    two.warm_up = slow
    write(version=3)
    scan = threading.Thread(target=two.scan)
    scan.start()
    assert loading.wait(WAIT_S)
    assert two.states()[3] == "loading"
    two.want(rolled_back={"to": 1, "above": 3})
    assert two.serving() == 1
    go_on.set()
    scan.join()
    assert two.serving() == 1
    assert two.states() == {3: "kept", 1: "available"}, "to unpin needs no load"
