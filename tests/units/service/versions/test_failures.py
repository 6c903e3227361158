"""Versions that fail and when they are tried again; what cannot be scanned; what is logged."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.engines import default_engine
from tests.units.service.versions.driven import Driven, Write

Drive = Callable[..., Driven]
Events = Callable[[], list[str]]


def test_version_copied_manifest_first_fails_once_and_is_then_served(
    write: Write, drive: Drive, root: Path, events: Events
) -> None:
    write()
    second = write(version=2)
    aside = second.directory.rename(root.parent / "second")
    driven = drive()
    events()
    second.directory.mkdir()
    shutil.copy(aside / "manifest.json", second.directory)
    for part in sorted(path for path in aside.iterdir() if path.is_dir()):
        driven.scan()
        assert driven.states() == {2: "failed", 1: "available"}
        shutil.copytree(part, second.directory / part.name)
    driven.scan()
    driven.scan()
    assert driven.states() == {2: "available", 1: "kept"}
    assert events() == ["version_failed", "version_available"]


def test_version_whose_engine_is_not_installed_fails_and_all_others_are_served(
    write: Write, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(without=frozenset({"indexes"}))
    write(model="films", without=frozenset({"indexes"}))
    write(version=2)
    engine = default_engine()
    # To Python, a module that is None is not installed.
    monkeypatch.setitem(sys.modules, engine, None)
    driven = drive()
    assert driven.states() == {2: "failed", 1: "available"}
    assert f"the package {engine} is not installed" in driven.problem(2)
    assert driven.states("films") == {1: "available"}


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the names of the events logged since the last call."""

    def logged() -> list[str]:
        names = [
            record.getMessage() for record in caplog.records if record.name.startswith("rowcast")
        ]
        caplog.clear()
        return names

    caplog.set_level(logging.INFO, "rowcast")
    return logged


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """Limits the number of further files that this process may open meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    limit = next(n for n in range(soft) if n - sum(descriptor < n for descriptor in used) == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_version_failed_by_the_machine_is_reported_once_and_tried_again(
    write: Write, drive: Drive, events: Events
) -> None:
    write()
    driven = drive()
    write(version=2)
    events()
    # Some for other threads of this process, and fewer than a version needs.
    with files_left(12):
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
    assert events() == ["version_failed", "version_available"]


def test_scan_missing_root_is_reported_once_and_keeps_serving(
    write: Write, drive: Drive, root: Path, events: Events
) -> None:
    write()
    driven = drive()
    root.rename(root.parent / "aside")
    events()
    driven.scan()
    driven.scan()
    assert driven.serving() == 1
    assert driven.value("rowcast_root_readable") == 0
    (root.parent / "aside").rename(root)
    driven.scan()
    assert events() == ["root_unreadable"]
    assert driven.value("rowcast_root_readable") == 1
