"""What a job reports of each finished step where there is no terminal."""

from __future__ import annotations

import io
import itertools
import re
import time

import pytest
from rich.console import Console

from export.jobs.progress import Progress, Unit


@pytest.mark.parametrize(
    ("pieces", "unit", "message"),
    [
        ([], "bytes", ""),
        ([1024, 2048], "bytes", r"3\.0 KiB, \S+ \S+/s"),
        ([5, 6], "rows", r"11 rows, \d+ rows/s"),
    ],
)
def test_line_of_a_step_tells_its_seconds_and_what_was_moved(
    pieces: list[int], unit: Unit, message: str
) -> None:
    lines = io.StringIO()
    progress = Progress(Console(file=lines, width=100))
    with progress.step("copy tables", unit=unit) as moved:
        for count in pieces:
            moved(count)
    rate = rf"   {message}" if message else ""
    assert re.fullmatch(rf"  copy tables +\d+\.\d\d s{rate}\n", lines.getvalue())
    assert progress.seconds["copy tables"] >= 0


@pytest.mark.parametrize(
    ("unit", "message"), [("bytes", "3.0 KiB, 12.0 KiB/s"), ("rows", "3072 rows, 12288 rows/s")]
)
def test_rate_is_that_of_the_seconds_shown(
    unit: Unit, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.chain([5.0, 5.0], itertools.repeat(5.25))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    lines = io.StringIO()
    with Progress(Console(file=lines, width=100)).step("copy tables", unit=unit) as moved:
        moved(3072)
    assert lines.getvalue() == f"  copy tables               0.25 s   {message}\n"


def test_step_that_fails_is_not_told_as_finished() -> None:
    lines = io.StringIO()
    progress = Progress(Console(file=lines, width=100))

    def fail() -> None:
        with progress.step("copy tables") as moved:
            moved(5)
            raise KeyError("t")

    with pytest.raises(KeyError):
        fail()
    assert lines.getvalue() == ""
    assert progress.seconds == {}
