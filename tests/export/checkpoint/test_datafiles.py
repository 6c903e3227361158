from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.datafiles import EMPTY_READS_MAX, DataFiles
from export.errors import CheckpointError, CheckpointOffline


def read_with_empty_reads(file: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Reads eight bytes of a file whose storage brings none a few times, as a network filesystem may that fails."""
    read, left = os.preadv, [count + 1]  # the first read is tried again at once, whatever it brings

    def failing(*arguments: Any) -> int:
        left[0] -= 1
        return 0 if left[0] >= 0 else read(*arguments)

    buffer = np.empty(8, np.uint8)
    with DataFiles() as files:
        files.read_into(str(file), 0, buffer)
        monkeypatch.setattr(os, "preadv", failing)
        files.read_into(str(file), 0, buffer)
    return buffer.tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(b"12345678")
    return tmp_path / "data"


def test_read_that_brings_nothing_is_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_with_empty_reads(file, EMPTY_READS_MAX - 1, monkeypatch) == b"12345678"


def test_reads_that_bring_nothing_again_and_again_are_the_storages_fault(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointOffline, match="though the file is long enough; once it can, run again"):
        read_with_empty_reads(file, EMPTY_READS_MAX, monkeypatch)


def test_file_that_is_too_short_is_damaged(file: Path) -> None:
    with DataFiles() as files, pytest.raises(CheckpointError, match="was cut short") as told:
        files.read_into(str(file), 4, np.empty(8, np.uint8))
    assert not isinstance(told.value, CheckpointOffline)
