"""The state file: written whole or not at all, read by many, damaged, unwritable."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import NotReady, Unimplemented
from service.models.desired_state import Desired, DesiredModel
from service.models.state_file import BYTES_MAX, Follower, StateFile, StateUnreadable


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "state.json")


def pin(content: Desired) -> Desired:
    return content.with_model("m", DesiredModel(pinned=(3,)))


def test_read_missing_file_is_the_default(file: StateFile) -> None:
    assert file.read() == Desired()
    assert file.stamp() is None


def test_update_is_read_back_with_the_next_revision(file: StateFile) -> None:
    first = file.update(pin)
    assert first == file.read() == pin(Desired()).model_copy(update={"revision": 1})
    assert file.update(lambda content: content.drained(draining=True)).revision == 2
    assert sorted(each.name for each in file.path.parent.iterdir()) == ["state.json", "state.json.lock"]


def test_update_that_changes_nothing_writes_nothing(file: StateFile) -> None:
    file.update(pin)
    before = file.stamp()
    assert file.update(pin).revision == 1
    assert file.stamp() == before


def test_update_by_many_writers_loses_none(file: StateFile) -> None:
    def write(model: str) -> None:
        for _ in range(5):
            file.update(lambda content: content.with_model(model, pinned(content.of(model))))

    def pinned(before: DesiredModel) -> DesiredModel:
        return DesiredModel(pinned=(*before.pinned, len(before.pinned) + 1))

    writers = [threading.Thread(target=write, args=(f"m{number}",)) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    content = file.read()
    assert content.revision == 20
    assert {model.pinned for model in content.models.values()} == {(1, 2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b'{"schema_version": 1, "models": {"m": {"pinned": [3]', "damaged"),
        (b'{"schema_version": 2}', "schema_version"),
        (b'{"schema_version": 1, "pins": {}}', "pins"),
        (b'{"schema_version": 1, "models": {"../m": {}}}', "models"),
        (b'{"schema_version": 1, "models": {"m": {"pinned": [0]}}}', "pinned.0"),
        (b'{"schema_version": 1, "models": {"m": {"labels": {"a": "3"}}}}', "labels.a"),
        (b" " * (BYTES_MAX + 1), "larger than"),
    ],
)
def test_read_damaged_file_is_reported_and_never_overwritten(file: StateFile, content: bytes, message: str) -> None:
    file.path.write_bytes(content)
    with pytest.raises(StateUnreadable, match=message):
        file.read()
    with pytest.raises(NotReady, match="state file"):
        file.update(pin)
    assert file.path.read_bytes() == content


def test_read_without_its_directory_is_unreadable_not_missing(tmp_path: Path) -> None:
    with pytest.raises(StateUnreadable, match="directory"):
        StateFile(tmp_path / "gone" / "state.json").read()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_read_what_is_no_file_is_reported_at_once(file: StateFile, make: Callable[[Path], None]) -> None:
    make(file.path)
    with pytest.raises(StateUnreadable, match="not a regular file"):
        file.read()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EROFS, Unimplemented), (errno.EACCES, Unimplemented), (errno.ENOSPC, NotReady)]
)
def test_update_unwritable_place_is_reported_and_changes_nothing(
    file: StateFile, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    file.update(pin)

    def fail_sync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail_sync)
    with pytest.raises(kind, match=os.strerror(number)):
        file.update(lambda content: content.drained(draining=True))
    assert sorted(each.name for each in file.path.parent.iterdir()) == ["state.json", "state.json.lock"]
    assert file.read().revision == 1


def test_follower_damaged_file_keeps_the_last_state(file: StateFile) -> None:
    follower = Follower(file)
    assert follower.refresh()
    assert not follower.refresh()
    file.update(pin)
    assert follower.refresh()
    held = follower.desired
    file.path.write_bytes(b"{")
    assert follower.refresh()
    assert not follower.refresh()
    assert (follower.desired, "damaged" in follower.problem) == (held, True)
    file.path.unlink()
    assert follower.refresh()
    assert (follower.desired, follower.problem) == (Desired(), "")


def test_follower_missing_directory_keeps_the_last_state(tmp_path: Path) -> None:
    place = tmp_path / "state"
    follower = Follower(StateFile(place / "state.json"))
    assert follower.refresh()
    assert (follower.desired, "directory" in follower.problem) == (None, True)
    place.mkdir()
    StateFile(place / "state.json").update(pin)
    assert follower.refresh()
    held = follower.desired
    place.rename(tmp_path / "aside")
    assert not follower.refresh()
    assert (follower.desired, follower.problem) == (held, "")
