"""What breaks while changes are made, or kept, and what the caller and the candidates get:
nothing is lost, nothing is made twice, and nobody waits beyond a deadline.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rowcast_client import Client

from bundle.changes.log import ChangeLog
from service.changes.follower import Changes
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.changes.making import (
    Rejected,
    candidate,
    change,
    deletion,
    ids_of,
    file_of,
    operate,
    status,
    until_applied,
)
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService, flip

pytestmark = pytest.mark.slow

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
SOON_S = 0.4


def test_damaged_log_is_served_once_it_is_recovered(write: Write, serve: Serve) -> None:
    small = write()
    running = serve()
    change(running, "candidates/upsert", candidate(5000))
    for year in (2001, 2002):
        change(running, "candidates/attributes", {"id": 5000, "attributes": {"year": year}})
    ctl("--admin", running.admin, "changes", "compact", "movies")
    path = file_of(running)
    position = path.stat().st_size
    change(running, "candidates/upsert", candidate(5001))
    change(running, "candidates/delete", {"id": 1014})
    flip(path, position + 150)

    restarted = serve()
    assert restarted.states() == {1: "failed"}
    assert str(path) in restarted.problem(1)
    with pytest.raises(Rejected, match="NOT_READY"):
        change(restarted, "candidates/delete", {"id": 1000})
    admin = ("--admin", restarted.admin, "changes")
    assert "problem: the record at byte " in ctl(*admin, "status", "movies").stdout
    recovered_log = ctl(*admin, "recover", "movies").stdout
    assert "sequences that are lost: 4; the damaged log is " in recovered_log
    restarted.worker.poller.look_again()
    until(lambda: restarted.states() == {1: "available"})
    recovered = ids_of(restarted)
    assert recovered == {*small.ids.tolist(), 5000} - {1014}

    # A process that had the lost change reads the log anew.
    change(restarted, "candidates/upsert", candidate(5003))
    until(lambda: ids_of(running) == recovered | {5003})
    for service in (running, restarted):
        latest = {"year": {"ge": 2002}}
        assert ids_of(service, filter=latest) >= {5000}


def test_nothing_behind_a_record_that_cannot_be_read_is_applied_or_written(
    write: Write, serve: Serve
) -> None:
    """As a later release writes some, whose processes share the log during an upgrade."""
    write()
    later = serve()
    running = serve()
    change(later, "candidates/upsert", candidate(5000))
    until_applied(later, running)
    later.close()
    log = ChangeLog(file_of(running), "movies")
    (record,) = log.read()
    with log.writing() as writer:
        writer.append(b"a change of a later release")
        writer.append(record.payload)
        writer.commit()
    until(lambda: running.value("rowcast_changes_followed", model="movies") == 0)
    before = ids_of(running)
    for _ in range(2):
        assert "no change that this release reads" in status(running)["problem"]
        with pytest.raises(Rejected, match=r"NOT_READY: .*no change was made"):
            change(running, "candidates/delete", {"id": 5000})
        time.sleep(0.6)
    assert ids_of(running) == before
    assert running.value("rowcast_changes_followed", model="movies") == 0
    assert ChangeLog(log.path, "movies").read()[-1].sequence == 3
    assert serve().states() == {1: "failed"}


def test_log_that_cannot_be_written_changes_nothing(write: Write, serve: Serve) -> None:
    write()
    service = serve()
    lock = file_of(service).with_name("changes.log.lock")
    lock.mkdir()
    with pytest.raises(Rejected, match=r"NOT_READY: .*Is a directory"):
        change(service, "candidates/upsert", candidate(5000))
    assert 5000 not in ids_of(service)
    lock.rmdir()
    assert change(service, "candidates/upsert", candidate(5000))["sequence"] == 1
    assert 5000 in ids_of(service)
    # Without the lock that this process holds, another one might write, too.
    lock.unlink()
    with pytest.raises(Rejected, match=r"NOT_READY: .*no change was made"):
        change(service, "candidates/upsert", candidate(5001))
    assert 5001 not in ids_of(service)


def test_full_log_rejects_changes_and_still_loses_what_has_expired(
    write: Write, serve: Serve
) -> None:
    write()
    services = [serve(max_log_bytes=1 << 20), serve(max_log_bytes=1 << 20)]
    change(services[0], "candidates/upsert", candidate(5000, expires_s=time.time() + 1))
    large = candidate(6000, attributes={"title": "x" * 300_000})
    for _ in range(3):
        change(services[0], "candidates/upsert", large)
    with pytest.raises(Rejected, match=r"TOO_LARGE: .*max_log_bytes"):
        change(services[0], "candidates/upsert", large)
    for service in services:
        until(lambda: 5000 not in ids_of(service))  # noqa: B023
        assert 6000 in ids_of(service)
    assert file_of(services[0]).stat().st_size <= 1 << 20


def test_rejected_changes_that_a_broken_disk_keeps_are_not_served_or_read(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system is that was mounted read-only after an error."""
    write()
    service = serve()
    change(service, "candidates/upsert", candidate(5000))

    def fail(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    many = [candidate(key) for key in range(6000, 6050)]
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        broken.setattr(os, "ftruncate", fail)
        with pytest.raises(Rejected, match=r"NOT_READY: .*Read-only.*no change was made"):
            change(service, "candidates/upsert", *many)
    # It is shorter than what the disk has kept.
    assert change(service, "candidates/upsert", candidate(5001))["sequence"] == 2
    served = ids_of(service)
    assert {5000, 5001} <= served
    assert 6000 not in served
    service.close()
    assert ids_of(serve()) == served


def test_compaction_whose_file_a_disk_may_lose_again_takes_changes(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    service = serve()
    for _ in range(5):
        change(service, "candidates/upsert", candidate(5000))
    change(service, "candidates/upsert", candidate(5001))
    size = file_of(service).stat().st_size
    sync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail_for_directories)
        with pytest.raises(Rejected, match=r"was compacted; .*Input/output error; a loss of power"):
            operate(service, "POST", "changes/compact", json={})
        # The file is in the place of the log, which was longer. A loss of power that brings that
        # back would take what comes behind.
        assert file_of(service).stat().st_size < size
        for _ in range(2):
            with pytest.raises(Rejected, match=r"Input/output error; no change was made"):
                change(service, "candidates/upsert", candidate(5003))
    until(lambda: not status(service)["problem"])
    change(service, "candidates/upsert", candidate(5002))
    served = ids_of(service)
    assert {5000, 5001, 5002} <= served
    assert 5003 not in served
    service.close()
    assert ids_of(serve()) == served


class HangingDisk:
    """Lets every write hang from one moment on, until another one.

    Attributes:
      hangs: From then on.
      entered: A write hangs.
      responds: Until then.
    """

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.entered = threading.Event()
        self.responds = threading.Event()
        self._sync = os.fdatasync

    def fdatasync(self, descriptor: int) -> None:
        if self.hangs.is_set():
            self.entered.set()
            assert self.responds.wait(WAIT_S)
        self._sync(descriptor)

    def hold_up(self, service: RunningService, item: dict[str, Any], **options: Any) -> None:
        """Sends a change until a deadline passes while it is written."""
        self.hangs.set()
        timeout_s = SOON_S
        while not self.entered.is_set():
            with pytest.raises(Rejected, match="DEADLINE") as rejected:
                change(service, "candidates/upsert", item, timeout_s=timeout_s, **options)
            timeout_s *= 2
        assert "may have been made" in rejected.value.message


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    disk = HangingDisk()
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    yield disk
    disk.responds.set()


def test_service_stops_beside_a_change_that_a_disk_holds_up(
    write: Write, serve: Serve, disk: HangingDisk
) -> None:
    """Then another one may write, once the disk responds."""
    write()
    service = serve()
    disk.hold_up(service, candidate(5000))
    service.close()
    disk.responds.set()
    until(lambda: change(serve(), "candidates/upsert", candidate(5001))["sequence"] == 2)


def test_version_that_ends_while_another_is_attached_is_forgotten_later(
    write: Write, serve: Serve
) -> None:
    """Nobody waits for its log meanwhile."""
    write()
    service = serve(keep_previous=False)
    changes = Changes(service.settings, service.worker.versions, service.worker.metrics)
    changes.attach(service.current(), lambda *_: None)
    write(version=2, size=20)
    until(lambda: service.states() == {2: "available"})
    is_attaching = threading.Event()
    is_followed = threading.Event()

    def serve_attached(*_: Any) -> None:
        is_attaching.set()
        assert is_followed.wait(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        attached = pool.submit(changes.attach, service.current(), serve_attached)
        assert is_attaching.wait(WAIT_S)
        changes.follow()
        is_followed.set()
        attached.result()
    changes.follow()
    assert [version["version"] for version in changes.status("movies")["versions"]] == [2]
    changes.stop()


@pytest.mark.parametrize(
    ("item", "options", "expected"),
    [
        ({"sequence": 7}, {}, {"outdated": [5000]}),
        ({}, {"stream": "events", "offset": 9}, {"is_repeated": True}),
        ({}, {}, {"changed": 1}),
    ],
)
def test_change_that_a_disk_holds_up_is_made_once_however_often_it_is_sent(
    write: Write,
    serve: Serve,
    disk: HangingDisk,
    item: dict[str, Any],
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    write()
    service = serve()
    first = candidate(5000, **item)
    disk.hold_up(service, first, **options)
    # Nobody waits for the disk: what comes behind is withdrawn, and readers get an error.
    with pytest.raises(Rejected, match="DEADLINE"):
        change(service, "candidates/upsert", candidate(5001), timeout_s=SOON_S)
    with pytest.raises(Rejected, match="DEADLINE"):
        status(service, SOON_S)

    disk.responds.set()
    repeated = change(service, "candidates/upsert", first, **options)
    assert {name: repeated[name] for name in expected} == expected
    deleted = change(service, "candidates/delete", *deletion([5000, 5001]))
    assert (deleted["changed"], deleted["unknown"]) == (1, [5001])


def test_changes_that_are_rejected_leave_those_written_with_them_alone(
    write: Write, serve: Serve, disk: HangingDisk
) -> None:
    write()
    service = serve(max_streams=2)
    no_stream: dict[str, Any] = {}
    disk.hangs.set()
    with ThreadPoolExecutor(17) as pool:
        pool.submit(change, service, "candidates/upsert", candidate(4999))
        assert disk.entered.wait(WAIT_S)
        results = [
            pool.submit(change, service, "candidates/upsert", candidate(5000 + number), **options)
            for number in range(8)
            for options in (no_stream, {"stream": f"stream {number}", "offset": 5})
        ]
        until(lambda: service.worker.change_plane.calls == 17)
        disk.responds.set()
    problems = [result.exception() for result in results]
    codes = [problem.code for problem in problems if isinstance(problem, Rejected)]
    assert codes == ["TOO_LARGE"] * 6
    assert all(result.result()["changed"] == 1 for result in results[::2])


def test_versions_take_changes_that_are_written_together_in_one_order(
    write: Write, serve: Serve, hosted: Callable[..., dict[str, Any]], disk: HangingDisk
) -> None:
    """Whichever of two loaded versions each of the changes is for."""
    for number in (1, 2):
        write(version=number, size=20)
    options = {**hosted("host"), "latest_versions": 2}
    service = serve(**options)
    features = {"movie": [1007], "genres": [["drama"]], "year": [0.5]}
    disk.hangs.set()
    with (
        Client(service.http, token=COPIES_TOKEN, timeout_s=WAIT_S) as client,
        ThreadPoolExecutor(9) as pool,
    ):
        pool.submit(client.delete_candidates, [1014], version=1)
        assert disk.entered.wait(WAIT_S)
        for number in (1, 2):
            title = {"title": [f"of a change for version {number}"]}
            pool.submit(client.upsert_candidates, [5000 + number], features, version=number)
            pool.submit(client.delete_candidates, [5003 - number], version=number)
            for key in (1000, 1007):
                pool.submit(client.set_candidate_attributes, [key], title, version=number)
        until(lambda: service.worker.change_plane.calls == 9)
        disk.responds.set()
    states = []
    for running in (service, serve(**options)):
        with Client(running.http, token=COPIES_TOKEN, timeout_s=WAIT_S) as client:
            for number in (1, 2):
                retrieved = client.retrieve(
                    vectors=[[1.0] * 8], k=1000, attributes=["title"], version=number
                )[0]
                titles = zip(retrieved.ids.tolist(), retrieved.attributes["title"], strict=True)
                changed = {1000, 1007, 1014, 5001, 5002}
                states.append({key: title for key, title in titles if key in changed})
    assert states == 4 * states[:1]
    assert {1000, 1007} <= states[0].keys() <= {1000, 1007, 5001, 5002}


def test_files_of_changes_are_private_and_become_so(write: Write, serve: Serve) -> None:
    write()
    path = file_of(serve())
    change(serve(), "candidates/upsert", candidate(5000))
    path.chmod(0o644)
    serve()
    files = path.parent.glob("changes.*")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
