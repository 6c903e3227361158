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
        ("bytes", 30, r" +30 B, .*B/s"),
        ("bytes", None, ""),
    ],
)
def test_step_tells_how_much_and_how_fast(unit: Unit, total: int | None, told: str) -> None:
    shown = io.StringIO()
    progress = Progress(Console(file=shown, width=100))
    with progress.step("candidates", total or 0, unit) as moved:
        if total is not None:
            moved(10)
            moved(20)
    assert re.fullmatch(rf"  candidates +\d+\.\d\d s{told}\n", shown.getvalue())
    assert progress.seconds.keys() == {"candidates"}


def test_step_on_a_terminal_shows_a_bar() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=120, force_terminal=True)
    with Progress(console).step("vectors", 3000, "rows") as moved:
        moved(1000)
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown.getvalue()
