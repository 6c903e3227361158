"""What breaks while changes are made, or kept, and what the caller and the candidates get:
nothing is lost, nothing is made twice, and nobody waits beyond a deadline.
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import Client

from service.changes.follower import Changes
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.changes.making import (
    Rejected,
    candidate,
    change,
    deletion,
    file_of,
    ids_of,
    status,
)
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
SOON_S = 0.4


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"New 5000", b"New 6000"))


def become_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("break_it", "words"), [(damage, "is damaged"), (become_a_pipe, "is no regular file")]
)
def test_no_version_is_served_with_a_file_that_cannot_be_read_until_a_backup_is_in_its_place(
    break_it: Callable[[Path], None], words: str, write: Write, serve: Serve, tmp_path: Path
) -> None:
    write()
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    backup = tmp_path / "backup"
    ctl("--admin", service.admin, "changes", "backup", "movies", str(backup))
    expected = ids_of(service)
    change(service, "candidates/delete", {"id": 1000})
    service.close()
    file = file_of(service)
    break_it(file)
    broken = serve()
    assert broken.states() == {1: "failed"}
    assert f"{file} {words}" in broken.problem(1)
    with pytest.raises(Rejected, match="NOT_READY"):
        change(broken, "candidates/delete", {"id": 1007})
    broken.close()
    backup.replace(file)
    assert ids_of(serve()) == expected


def remove(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    os.truncate(file, 0)


def restore_an_older_one(file: Path) -> None:
    copy = file.with_name("older")
    shutil.copy(file, copy)
    copy.replace(file)


@pytest.mark.parametrize("replace", [remove, cut, restore_an_older_one])
def test_file_that_is_replaced_while_it_is_open_is_neither_read_nor_written(
    replace: Callable[[Path], None], write: Write, serve: Serve
) -> None:
    write()
    services = [serve(), serve()]
    change(services[0], "candidates/upsert", candidate(5000))
    until(lambda: 5000 in ids_of(services[1]))
    replace(file_of(services[0]))
    for service in services:
        until(lambda: service.value("rowcast_changes_followed", model="movies") == 0)  # noqa: B023
        assert "removed, cut or replaced" in status(service)["problem"]
        with pytest.raises(Rejected, match=r"DATA_LOSS: .*removed, cut or replaced"):
            change(service, "candidates/delete", {"id": 5000})
        assert 5000 in ids_of(service)


def test_changes_are_behind_a_link_as_in_their_place(
    root: Path, write: Write, serve: Serve, tmp_path: Path
) -> None:
    write()
    link = root / "movies" / "changes.sqlite"
    link.symlink_to(tmp_path / "volume" / "movies.sqlite")
    service = serve()
    change(service, "candidates/upsert", candidate(5000))
    service.close()
    assert link.is_symlink()
    assert 5000 in ids_of(serve())


def test_change_that_a_full_disk_does_not_take_is_not_made(write: Write, serve: Serve) -> None:
    write()
    services = [serve(), serve()]
    change(services[0], "candidates/upsert", candidate(5000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    many = [candidate(6000, attributes={"title": "x" * 300_000}), candidate(6001)]
    try:
        with pytest.raises(Rejected, match=r"NOT_READY: .*no change was made"):
            change(services[0], "candidates/upsert", *many)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for service in services:
        change(service, "candidates/upsert", candidate(5001))
        assert not {6000, 6001} & ids_of(service)
    for service in services:
        service.close()
    assert {5000, 5001} <= ids_of(serve()) - {6000, 6001}


def test_full_file_rejects_changes_and_still_loses_what_has_expired(
    write: Write, serve: Serve
) -> None:
    write()
    services = [serve(max_changes_bytes=1 << 20), serve(max_changes_bytes=1 << 20)]
    change(services[0], "candidates/upsert", candidate(5000, expires_s=time.time() + 1))
    titles = {"title": "x" * 300_000}
    for key in (6000, 6000, 6001, 6000, 6002):
        change(services[0], "candidates/upsert", candidate(key, attributes=titles))
    with pytest.raises(Rejected, match=r"TOO_LARGE: .*max_changes_bytes"):
        change(services[0], "candidates/upsert", candidate(6003, attributes=titles))
    for service in services:
        until(lambda: 5000 not in ids_of(service))  # noqa: B023
        assert 6000 in ids_of(service)
    # What replaces or deletes takes no more room.
    change(services[1], "candidates/upsert", candidate(6001))
    change(services[0], "candidates/upsert", candidate(6003, attributes=titles))


@contextmanager
def another_writer(service: RunningService) -> Iterator[None]:
    """Writes the file of a service for some time, as another process does."""
    with closing(sqlite3.connect(file_of(service), isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


def test_change_that_waits_for_another_writer_until_its_deadline_is_never_made(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    stopping = serve()
    change(service, "candidates/upsert", candidate(4999))
    with another_writer(service):
        for running in (service, service, stopping):
            with pytest.raises(Rejected, match=r"DEADLINE: .*was not made, and will not be"):
                change(running, "candidates/upsert", candidate(5000), timeout_s=SOON_S)
        stopping.close()
    added = change(service, "candidates/upsert", candidate(5001))
    deleted = change(service, "candidates/delete", *deletion([5000, 5001]))
    assert (added["changed"], deleted["changed"], deleted["unknown"]) == (1, 1, [5000])


def test_changes_that_are_rejected_leave_those_written_with_them_alone(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve(max_streams=2)
    change(service, "candidates/upsert", candidate(4999))
    no_stream: dict[str, Any] = {}
    with ThreadPoolExecutor(16) as pool:
        with another_writer(service):
            results = [
                pool.submit(
                    change, service, "candidates/upsert", candidate(5000 + number), **options
                )
                for number in range(8)
                for options in (no_stream, {"stream": f"stream {number}", "offset": 5})
            ]
            until(lambda: service.worker.change_plane.calls == 16)
        problems = [result.exception() for result in results]
    codes = [problem.code for problem in problems if isinstance(problem, Rejected)]
    assert codes == ["TOO_LARGE"] * 6
    assert all(result.result()["changed"] == 1 for result in results[::2])


def test_versions_take_changes_that_are_written_together_in_one_order(
    write: Write, serve: Serve, hosted: Callable[..., dict[str, Any]]
) -> None:
    """Whichever of two loaded versions each of the changes is for."""
    for number in (1, 2):
        write(version=number, size=20)
    options = {**hosted("host"), "latest_versions": 2}
    service = serve(**options)
    features = {"movie": [1007], "genres": [["drama"]], "year": [0.5]}
    with (
        Client(service.http, token=COPIES_TOKEN, timeout_s=WAIT_S) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        client.delete_candidates([1014], version=1)
        with another_writer(service):
            for number in (1, 2):
                title = {"title": [f"of a change for version {number}"]}
                pool.submit(client.upsert_candidates, [5000 + number], features, version=number)
                pool.submit(client.delete_candidates, [5003 - number], version=number)
                for key in (1000, 1007):
                    pool.submit(client.set_candidate_attributes, [key], title, version=number)
            until(lambda: service.worker.change_plane.calls == 8)
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


def test_files_of_changes_are_private_and_become_so(write: Write, serve: Serve) -> None:
    write()
    path = file_of(serve())
    change(serve(), "candidates/upsert", candidate(5000))
    path.chmod(0o644)
    serve()
    files = path.parent.glob("changes.*")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
