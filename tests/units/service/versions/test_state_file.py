"""The state file: written whole or not at all, read by many, damaged, unwritable."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from service.errors import DeadlineExceeded, NotReady
from service.versions.desired_state import Desired, DesiredModel
from service.versions.state_file import BYTES_MAX, StateFile, StateUnreadable


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "state.json")


def pin(content: Desired) -> Desired:
    return content.with_model("m", DesiredModel(pinned=(3,)))


def test_update_by_many_writers_loses_none(file: StateFile) -> None:
    def write(model: str) -> None:
        for _ in range(5):
            file.update(lambda content: content.with_model(model, pinned(content.of(model))))

    def pinned(before: DesiredModel) -> DesiredModel:
        return DesiredModel(pinned=(*before.pinned, len(before.pinned) + 1))

    writers = [threading.Thread(target=write, args=(f"m{number}",)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    content = file.read()
    assert content.revision == 20
    assert {model.pinned for model in content.models.values()} == {(1, 2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema_version": 1, "models": {"m": {"pinned": [3]', "damaged"),
        (b'{"schema_version": 2}', "schema_version"),
        (b'{"schema_version": 1, "models": {"../m": {}}}', "models"),
        (b'{"schema_version": 1, "models": {"m": {"labels": {"a": "3.0"}}}}', "labels.a"),
        (b" " * (BYTES_MAX + 1), "larger than"),
    ],
)
def test_read_damaged_file_is_reported_and_never_overwritten(
    file: StateFile, content: bytes, message: str
) -> None:
    file.path.write_bytes(content)
    with pytest.raises(StateUnreadable, match=message):
        file.read()
    with pytest.raises(NotReady, match="state file"):
        file.update(pin)
    assert file.path.read_bytes() == content


def test_update_of_an_unwritable_file_is_reported_and_changes_nothing(
    file: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file.update(pin)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NotReady, match="No space left on device; --state-file names another path"):
        file.update(lambda content: content.with_model("m", DesiredModel()))
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "state.json",
        "state.json.lock",
    ]
    assert file.read().revision == 1


def test_update_whose_lock_another_process_holds_changes_nothing(file: StateFile) -> None:
    file.update(pin)
    with open(f"{file.path}.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded, match="nothing was changed"):
            file.update(lambda _: Desired(draining=True), time.monotonic() + 0.05)
    assert file.read().revision == 1
