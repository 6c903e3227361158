from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from export.errors import DestinationError
from export.jobs.destinations import Destination
from export.jobs.staged import staged


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "; free some space, then run again: it resumes"),
        (errno.EROFS, "; choose a root that can be written"),
        (errno.EIO, ""),
    ],
)
def test_disk_that_fails_is_reported_with_its_path_and_the_cure(
    tmp_path: Path, number: int, cure: str
) -> None:
    def fail() -> None:
        with staged(Destination(tmp_path, None), "m", 1) as draft:
            (draft.stage.directory / "kept").touch()
            raise OSError(number, os.strerror(number), "/the/file")

    with pytest.raises(DestinationError, match=f"^/the/file: {os.strerror(number)}{cure}$"):
        fail()
    assert (tmp_path / "m/.staging-1/kept").exists()
    assert not (tmp_path / "m/.staging-1.lock").exists()
