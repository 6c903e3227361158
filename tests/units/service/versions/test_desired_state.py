"""A desired state followed by a running service: pins, labels, rollbacks, loads,
unloads, a drain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.errors import NotReady
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
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
        assert go_on.wait(20)

    two.warm_up = slow
    write(version=3)
    scan = threading.Thread(target=two.scan)
    scan.start()
    assert loading.wait(20)
    assert two.states()[3] == "loading"
    two.want(rolled_back={"to": 1, "above": 3})
    assert two.serving() == 1
    go_on.set()
    scan.join(20)
    assert two.serving() == 1
    assert two.states() == {3: "kept", 1: "available"}, "to unpin needs no load"


def denied(driven: Driven, version: int) -> list[int]:
    """The candidates of a version that are denied."""
    with driven.manager.acquire("movies", version) as version_leased:
        (corpus,) = version_leased.corpora.values()
        positions = corpus.denied.positions.astype(np.int64)
        return [int(key) for key in corpus.store.ids(positions)]


def test_deny_list_holds_in_every_loaded_version_and_in_those_that_come(
    two: Driven, write: Write, drive: Drive
) -> None:
    ids = write(version=3, size=50).ids
    later = int(ids[45])  # versions 1 and 2 have 40 candidates
    two.want(denied=(str(ids[3]), str(ids[1]), str(later), "no number", "9" * 19))
    assert denied(two, 1) == denied(two, 2) == [ids[1], ids[3]]
    two.scan()
    assert denied(two, 3) == [ids[1], ids[3], later]
    assert two.value("rowcast_denied_ids", model="movies") == 5
    assert denied(drive(), 3) == [ids[1], ids[3], later], "as a worker that starts"
    two.want(denied=(str(ids[1]),))
    assert denied(two, 3) == [ids[1]]
    two.want(denied=())
    assert (denied(two, 3), two.value("rowcast_denied_ids", model="movies")) == ([], 0)
