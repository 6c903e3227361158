from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bundle.errors import DestinationExists, FeatureError, FormatError
from export.errors import DestinationError, ExportError, UsageError, VerificationFailed
from export.jobs.destinations import Destination
from export.jobs.staged import open_staged
from export.steps import Step, StepKey


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
        with open_staged(Destination(tmp_path, None), "m", 1) as version:
            (version.stage.directory / "kept").touch()
            raise OSError(number, os.strerror(number), "/the/file")

    with pytest.raises(DestinationError, match=f"^/the/file: {os.strerror(number)}{cure}$"):
        fail()
    assert (tmp_path / "m/.staging-1/kept").exists()
    assert not (tmp_path / "m/.staging-1.lock").exists()


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (
            FeatureError("year", "it", "a number", "is no number"),
            UsageError,
            "a value of verify.examples, or of a corpus, does not fit the model: feature 'year': "
            "it is no number; a number was expected; correct it in its file",
        ),
        (FormatError("it is torn"), ExportError, "it is torn"),
        (DestinationExists("it is there"), DestinationError, "it is there"),
        (OSError("gone"), DestinationError, "the destination: gone"),
        (
            VerificationFailed("a row differs", ["rows.bin", "other"]),
            VerificationFailed,
            "a row differs; nothing is published; ROOT/m/.staging-1 keeps what is finished, and "
            "the next run redoes the rest",
        ),
    ],
)
def test_what_stops_a_job_is_told_and_wrong_steps_are_done_again(
    tmp_path: Path, problem: Exception, kind: type[ExportError], message: str
) -> None:
    kept = 0

    def make() -> int:
        nonlocal kept
        kept += 1
        return kept

    steps = [Step(StepKey(name), int, make) for name in ("rows.bin", "towers")]

    def run() -> None:
        with open_staged(Destination(tmp_path, None), "m", 1) as version:
            for step in steps:
                version.run(step)
            assert version.steps == ["rows.bin", "towers"]
            raise problem

    with pytest.raises(kind) as failure:
        run()
    assert str(failure.value) == message.replace("ROOT", str(tmp_path))
    assert kept == 2
    with pytest.raises(kind):
        run()
    assert kept == (3 if isinstance(problem, VerificationFailed) else 2)


def test_version_that_another_run_makes_is_a_destination_error(tmp_path: Path) -> None:
    destination = Destination(tmp_path, None)
    with open_staged(destination, "m", 1) as version:
        begun = version.start_time({"model": "m"}, "crc32c:0")
        assert version.start_time({"model": "m"}, "crc32c:0") == begun
        with (
            pytest.raises(DestinationError, match="version 1 of model 'm' is being written by"),
            open_staged(destination, "m", 1),
        ):
            pass
