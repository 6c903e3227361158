"""Versions whose bundles contain changes of a log: they leave out what a bundle contains of the log
that the service has, and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle.changes.log import ChangeLog
from bundle.format.log_position import LogPosition
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import until
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.service.changes.making import (
    candidate,
    change,
    ids_of,
    log_of,
    operate,
    status,
    until_applied,
)
from tests.units.service.conftest import COPIES_TOKEN
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Publish = Callable[[LogPosition], None]
READS = {"headers": {"authorization": f"Bearer {COPIES_TOKEN}"}}
ADDED = {5000, 5001, 5002}


@pytest.fixture
def publish(
    write: Callable[..., SmallBundle], root: Path, small_towers: Path, tmp_path: Path
) -> Publish:
    """Writes version 1, and returns what publishes version 2 with the changes of a log up to a
    position. It has none of the candidates that they add: without a change, they are not found.
    """
    write(size=20)

    def publish(position: LogPosition) -> None:
        small = write_small_bundle(tmp_path / "written", small_towers, version=2, size=20)
        rewrite(small.directory, setting("changes_included", position.model_dump()))
        small.directory.rename(root / "movies" / "2")

    return publish


def load_next(service: RunningService) -> None:
    service.scan()
    until(lambda: service.current().version == 2)


def add(service: RunningService, *keys: int) -> None:
    for key in keys:
        change(service, "candidates/upsert", candidate(key))


def end_of(service: RunningService) -> LogPosition:
    log = ChangeLog(log_of(service), "movies")
    log.read()
    assert log.position is not None
    return log.position


@pytest.mark.parametrize("loaded_before", [0, 1, 3])
def test_version_with_the_changes_of_another_log_gets_all_of_this_one(
    publish: Publish, serve: Serve, loaded_before: int
) -> None:
    """Whichever of the changes it is loaded before: a log was begun anew, or a bundle comes from
    another host.
    """
    service = serve()
    for number, key in enumerate(sorted(ADDED)):
        if number == loaded_before:
            publish(LogPosition(log=32 * "a", sequence=5, checksum=7))
            load_next(service)
        add(service, key)
    if loaded_before == len(ADDED):
        publish(LogPosition(log=32 * "a", sequence=2, checksum=7))
        load_next(service)
    for running in (service, serve()):
        assert ids_of(running) >= ADDED
    assert status(service)["sequence"] == len(ADDED)


def test_version_leaves_out_the_changes_of_the_log_that_its_bundle_contains(
    publish: Publish, serve: Serve
) -> None:
    service = serve()
    add(service, 5000, 5001)
    position = end_of(service)
    add(service, 5002)
    publish(position)
    load_next(service)
    assert ids_of(service) & ADDED == {5002}
    # A compacted log knows which records it had.
    add(service, 5001, 5002)
    operate(service, "POST", "changes/compact", json={})
    until(lambda: not status(service)["problem"])
    for running in (service, serve()):
        assert ids_of(running) & ADDED == {5001, 5002}


@pytest.mark.parametrize("loaded_before", [1, 2, 3])
def test_no_change_is_lost_behind_an_older_copy_of_the_log(
    publish: Publish, serve: Serve, tmp_path: Path, loaded_before: int
) -> None:
    """It goes on with the sequences of the changes that it has lost, which the bundle contains."""
    service = serve()
    add(service, 5000)
    older = tmp_path / "older.log"
    shutil.copy(log_of(service), older)
    add(service, 6001, 6002)
    position = end_of(service)
    service.close()
    shutil.copy(older, log_of(service))

    service = serve()
    for number, key in enumerate([5000, 5001, 5002]):
        if number == loaded_before:
            publish(position)
            load_next(service)
        if number:
            add(service, key)
    if loaded_before == len(ADDED):
        publish(position)
        load_next(service)
    assert status(service)["sequence"] == position.sequence
    for running in (service, serve()):
        assert ids_of(running) >= ADDED


@pytest.mark.parametrize("is_loaded_first", [False, True])
def test_follower_serves_what_its_writer_serves_of_such_a_version(
    publish: Publish,
    serve: Serve,
    hosted: Callable[..., dict[str, Any]],
    is_loaded_first: bool,
) -> None:
    writer = serve(**hosted("writer"))
    add(writer, 5000, 5001)
    position = end_of(writer)
    add(writer, 5002)
    followed = hosted("follower", writer.http)
    if is_loaded_first:
        publish(position)
    follower = serve(**followed)
    until_applied(writer, follower)
    if not is_loaded_first:
        publish(position)
    for service in (writer, follower):
        load_next(service)
    assert end_of(follower) == end_of(writer)
    expected = status(writer)["versions"][-1]
    assert expected["changed"] == {"candidates movies": 1}
    for service in (follower, serve(**followed)):
        until_applied(writer, service)
        assert status(service)["versions"][-1] == expected
        assert ids_of(service, **READS) & ADDED == {5002}
