from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundle.storage.staging import Staging
from export.errors import UsageError
from export.steps import Step, StepKey


def step(file: Path, during: str = "") -> Step[str]:
    """A step that copies a file, which somebody else may write to at the same time."""

    def copy() -> str:
        text = file.read_text()
        if during:
            overwrite(file, during)
        return text

    return Step(StepKey("copy", files=[file]), str, copy)


def overwrite(file: Path, text: str) -> None:
    """Writes as many bytes in place, and sets the file's time back."""
    status = file.stat()
    with file.open("r+") as stream:
        stream.write(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_step_whose_file_changes_while_it_is_read_is_not_finished(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    with Staging(tmp_path / "out", "m", 1) as stage:
        with pytest.raises(UsageError, match="file changed while it was read; run again"):
            step(file, during="two").run(stage)
        overwrite(file, "one")  # what the step was keyed by
        with pytest.raises(UsageError, match="file changed"):  # so that it runs again
            step(file, during="six").run(stage)
