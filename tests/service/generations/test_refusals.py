"""What is refused and when it is tried again; what cannot be looked at; what the log says of both, and how often."""

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

from service.generations.refusals import refusal_of
from tests.service.running import Running, flip, touch, version_of
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def test_refused_version_is_tried_again_at_once_when_its_manifest_changes(write: Write, run: Run) -> None:
    small = write()
    vectors = small.directory / "indexes/movies/vectors.bin"
    flip(vectors)
    service = run()
    flip(vectors)
    service.scan()
    assert service.states() == {1: "refused"}
    touch(small.directory / "manifest.json")
    service.scan()
    assert service.states() == {1: "available"}


def test_refused_version_is_tried_again_when_its_files_have_come_to_rest(write: Write, run: Run) -> None:
    small = write()
    vectors = small.directory / "indexes/movies/vectors.bin"
    flip(vectors)
    service = run()
    for _ in range(3):
        service.scan()
    assert service.value("rowcast_loads_total", model="movies", outcome="refused") == 1
    flip(vectors)
    service.scan()
    assert service.states() == {1: "refused"}
    service.scan()
    assert service.states() == {1: "available"}


def test_version_copied_manifest_first_is_refused_once_and_then_served(write: Write, run: Run, root: Path) -> None:
    write()
    second = write(version=2)
    aside = second.directory.rename(root.parent / "second")
    service = run()
    with logged() as lines:
        second.directory.mkdir()
        shutil.copy(aside / "manifest.json", second.directory)
        for part in sorted(path for path in aside.iterdir() if path.is_dir()):
            service.scan()
            assert service.states() == {2: "refused", 1: "available"}
            shutil.copytree(part, second.directory / part.name)
        service.scan()
        service.scan()
    assert service.states() == {2: "available", 1: "kept"}
    assert events(lines) == ["version_refused", "version_available"]


def test_refusal_always_says_something_and_knows_when_the_machine_is_to_blame() -> None:
    problems = MemoryError(), RecursionError(), ValueError("no tower")
    refusals = [refusal_of((0, 0, 0), 0, problem) for problem in problems]
    assert [each.problem for each in refusals] == ["memory ran out", "RecursionError", "no tower"]
    assert [math.isfinite(each.again_at) for each in refusals] == [True, False, False]


class Listener(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@contextlib.contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """The events of the service meanwhile."""
    listener = Listener()
    root = logging.getLogger("rowcast")
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.INFO)
    yield listener.lines
    root.removeHandler(listener)
    root.setLevel(level)


def events(lines: list[logging.LogRecord]) -> list[str]:
    return [line.getMessage() for line in lines]


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """So many files more may this process open meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    limit = next(n for n in range(soft) if n - sum(each < n for each in used) == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_version_that_the_machine_refused_is_told_once_and_tried_again(write: Write, run: Run) -> None:
    write()
    service = run()
    write(version=2)
    with logged() as lines:
        with files_left(5):
            service.scan()
            assert service.states() == {2: "refused", 1: "available"}
            assert "Too many open files" in service.problem(2)
            service.watcher.look_again()
            service.scan()
        service.scan()
        assert service.states() == {2: "refused", 1: "available"}
        service.watcher.look_again()
        service.scan()
    assert service.states() == {2: "available", 1: "kept"}
    assert events(lines) == ["version_refused", "version_available"]


def test_tables_that_cannot_be_opened_for_their_check_are_no_data_loss(write: Write, run: Run) -> None:
    write()
    service = run()
    with logged() as lines, files_left(0):
        assert not service.watcher.check()
    assert version_of(service) == 1
    assert events(lines) == ["tables_unchecked"]
    assert service.watcher.check()
    assert service.value("rowcast_checked_bytes_total", model="movies") > 0


def test_one_directory_that_cannot_be_looked_at_keeps_no_other_from_being_served(
    write: Write, run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    (root / "circle").symlink_to(root / "circle")
    (root / "closed").mkdir()
    (root / "movies" / "9").symlink_to(root / "movies" / "9")
    listed = os.listdir

    def refuse(path: Path) -> list[str]:  # what the system does to any user but root
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with logged() as lines:
        service = run()
        service.scan()
    assert service.states() == {1: "available"}
    assert service.engine.ready
    assert sorted(events(lines)) == ["model_unreadable", "version_available"]


def test_root_that_is_gone_is_told_once(write: Write, run: Run, root: Path) -> None:
    write()
    service = run()
    root.rename(root.parent / "aside")
    with logged() as lines:
        service.scan()
        service.scan()
        assert version_of(service) == 1
        assert service.value("rowcast_root_readable") == 0
        (root.parent / "aside").rename(root)
        service.scan()
    assert events(lines) == ["root_unreadable"]
    assert service.value("rowcast_root_readable") == 1
