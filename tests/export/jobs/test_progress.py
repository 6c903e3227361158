from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from export.jobs.progress import Progress, Unit


@pytest.mark.parametrize(
    ("unit", "total", "told"),
    [
        ("rows", 0, r" +30 rows, \d+ rows/s"),
        ("rows", 30, r" +30 rows, \d+ rows/s"),
        ("bytes", 30, r" +30 B, .*B/s"),
    ],
)
def test_step_tells_how_much_and_how_fast(unit: Unit, total: int, told: str) -> None:
    shown = io.StringIO()
    with Progress(Console(file=shown, width=100)) as progress, progress.step("candidates", total, unit) as moved:
        moved(10)
        moved(20)
    assert re.fullmatch(rf"  candidates +\d+\.\d\d s{told}\n", shown.getvalue())
    assert progress.seconds.keys() == {"candidates"}


def test_step_that_moves_nothing_tells_no_rate() -> None:
    shown = io.StringIO()
    with Progress(Console(file=shown, width=100)) as progress, progress.step("towers"):
        pass
    assert re.fullmatch(r"  towers +\d+\.\d\d s\n", shown.getvalue())


@pytest.mark.parametrize("total", [0, 3000])
def test_step_on_a_terminal_shows_a_bar(total: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=120, force_terminal=True)
    with Progress(console) as progress, progress.step("vectors", total, "rows") as moved:
        moved(1000)
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown.getvalue()
