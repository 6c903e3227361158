from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bundle.storage.staging import Staging
from export.errors import UsageError
from export.steps import Step, StepKey

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


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


def test_step_of_a_file_with_other_content_and_kept_times_is_done_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    with Staging(tmp_path / "out", "m", 1) as stage:
        assert step(file).run(stage) == "one"
        overwrite(file, "two")
        assert step(file).run(stage) == "two"


def test_step_whose_file_changes_while_it_is_read_is_not_finished(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    with Staging(tmp_path / "out", "m", 1) as stage:
        with pytest.raises(UsageError, match="file changed while it was read; run again"):
            step(file, during="two").run(stage)
        overwrite(file, "one")  # what the step was keyed by
        with pytest.raises(UsageError, match="file changed"):  # so that it runs again
            step(file, during="six").run(stage)


@pytest.mark.parametrize(
    "changed",
    [
        StepKey("towers/b", {"k": 10, "vectors": VECTORS}, content=["0a"]),
        StepKey("towers/a", {"k": 11, "vectors": VECTORS}, content=["0a"]),
        StepKey("towers/a", {"k": 10, "vectors": VECTORS + 1}, content=["0a"]),
        StepKey("towers/a", {"k": 10, "vectors": VECTORS}, content=["0b"]),
        StepKey("towers/a", {"k": 10, "vectors": VECTORS}, content=["0a"], libraries=["numpy"]),
    ],
    ids=["step", "input", "array", "content", "libraries"],
)
def test_step_key_with_one_other_part_has_another_digest(changed: StepKey) -> None:
    key = StepKey("towers/a", {"k": 10, "vectors": VECTORS}, content=["0a"])
    second = StepKey("towers/a", {"vectors": VECTORS.copy(), "k": 10}, content=("0a",))
    assert key.digest() == second.digest()
    assert key.digest() != changed.digest()


def test_step_key_with_an_input_that_has_no_digest_is_rejected() -> None:
    with pytest.raises(TypeError, match="not JSON serializable: function"):
        StepKey("towers/a", {"function": overwrite}).digest()
