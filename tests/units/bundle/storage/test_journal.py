from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import File
from bundle.storage import journal

FILE = File(path="towers/a", bytes=3, crc32c=7)


def steps(path: Path) -> dict[str, Any]:
    return {step: entry.payload for step, entry in journal.read(path).items()}


def test_read_returns_the_last_entry_of_each_step(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.append(path, "a", "old key", 1, [])
    journal.append(path, "b", "key", {"rows": 5}, [])
    appended = journal.append(path, "a", "key", None, [FILE])
    assert appended == journal.Finished("key", None, (FILE,))
    assert journal.read(path) == {"b": journal.Finished("key", {"rows": 5}, ()), "a": appended}


def test_read_without_a_journal_returns_no_steps(tmp_path: Path) -> None:
    assert journal.read(tmp_path / "journal") == {}


@pytest.mark.parametrize("torn", [1, 5, 9, 30])
def test_read_after_a_crash_loses_the_torn_line_only(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "journal"
    journal.append(path, "a", "key", 1, [])
    journal.append(path, "b", "key", "payload", [])
    path.write_bytes(path.read_bytes()[:-torn])
    assert steps(path) == {"a": 1}
    journal.append(path, "c", "key", 3, [])
    assert steps(path) == {"a": 1, "c": 3}


def test_append_on_a_full_disk_leaves_the_journal_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal.append(path, "a", "key", 1, [])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(path, "b", "key", 2, [])
    assert path.read_bytes() == before
