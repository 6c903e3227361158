"""Versions that fail and when they are tried again; what cannot be scanned; what is logged."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.models.failures import LoadFailure
from service.models.loader import LoadRejected
from tests.service.models.driven import Driven, Write, flip

Drive = Callable[..., Driven]


def test_failed_version_is_tried_again_when_its_files_have_come_to_rest(write: Write, drive: Drive) -> None:
    small = write()
    vectors = small.directory / "indexes/movies/vectors.bin"
    flip(vectors)
    driven = drive()
    for _ in range(3):
        driven.scan()
    assert driven.value("rowcast_loads_total", model="movies", outcome="failed") == 1
    flip(vectors)
    driven.scan()
    assert driven.states() == {1: "failed"}
    driven.scan()
    assert driven.states() == {1: "available"}


def test_version_copied_manifest_first_fails_once_and_is_then_served(
    write: Write, drive: Drive, root: Path, events: list[str]
) -> None:
    write()
    second = write(version=2)
    aside = second.directory.rename(root.parent / "second")
    driven = drive()
    events.clear()
    second.directory.mkdir()
    shutil.copy(aside / "manifest.json", second.directory)
    for part in sorted(path for path in aside.iterdir() if path.is_dir()):
        driven.scan()
        assert driven.states() == {2: "failed", 1: "available"}
        shutil.copytree(part, second.directory / part.name)
    driven.scan()
    driven.scan()
    assert driven.states() == {2: "available", 1: "kept"}
    assert events == ["version_failed", "version_available"]


def test_load_failure_always_has_a_message_and_knows_whether_the_machine_was_at_fault() -> None:
    problems = MemoryError(), RecursionError("secret"), LoadRejected("no tower"), OSError(5, "I/O error")
    failures = [LoadFailure.of(0, problem) for problem in problems]
    assert [each.problem for each in failures] == [
        "memory ran out",
        "unexpected RecursionError while loading; the log has it",
        "no tower",
        "[Errno 5] I/O error",
    ]
    assert [math.isfinite(each.retry_at) for each in failures] == [True, False, False, True]


@pytest.fixture
def events() -> Iterator[list[str]]:
    """The names of the events logged so far."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    found: list[str] = []
    listener, root = Listener(), logging.getLogger("rowcast")
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(listener)
    root.setLevel(level)


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """So many more files may this process open meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    limit = next(n for n in range(soft) if n - sum(each < n for each in used) == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_version_failed_by_the_machine_is_reported_once_and_tried_again(
    write: Write, drive: Drive, events: list[str]
) -> None:
    write()
    driven = drive()
    write(version=2)
    events.clear()
    with files_left(5):
        driven.scan()
        assert driven.states() == {2: "failed", 1: "available"}
        assert "Too many open files" in driven.problem(2)
        driven.poller.look_again()
        driven.scan()
    driven.scan()
    assert driven.states() == {2: "failed", 1: "available"}
    driven.poller.look_again()
    driven.scan()
    assert driven.states() == {2: "available", 1: "kept"}
    assert events == ["version_failed", "version_available"]


def test_scan_unreadable_directory_keeps_no_other_model_from_being_served(
    write: Write, drive: Drive, root: Path, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    write()
    (root / "circle").symlink_to(root / "circle")
    (root / "closed").mkdir()
    (root / "movies" / "9").symlink_to(root / "movies" / "9")
    listed = os.listdir

    def deny(path: Path) -> list[str]:  # what the system does to any user but root
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", deny)
    driven = drive()
    driven.scan()
    assert driven.states() == {1: "available"}
    assert driven.manager.settled
    assert sorted(events) == ["model_unreadable", "version_available"]


def test_scan_missing_root_is_reported_once_and_keeps_serving(
    write: Write, drive: Drive, root: Path, events: list[str]
) -> None:
    write()
    driven = drive()
    root.rename(root.parent / "aside")
    events.clear()
    driven.scan()
    driven.scan()
    assert driven.serving() == 1
    assert driven.value("rowcast_root_readable") == 0
    (root.parent / "aside").rename(root)
    driven.scan()
    assert events == ["root_unreadable"]
    assert driven.value("rowcast_root_readable") == 1


def test_scrub_of_files_that_cannot_be_opened_is_no_data_loss(write: Write, drive: Drive, events: list[str]) -> None:
    write()
    driven = drive()
    with files_left(0):
        driven.poller.scrub()
    driven.poller.scrub()
    assert driven.states() == {1: "available"}
    assert events == ["version_available", "scrub_unreadable", "version_scrubbed"]
