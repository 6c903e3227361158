from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from export.jobs.progress import Progress


@pytest.mark.parametrize("total", [None, 30])
def test_progress_of_rows_tells_how_many_and_how_fast(total: int | None) -> None:
    shown = io.StringIO()

    with Progress(Console(file=shown, width=100)) as progress, progress.rows("candidates", total) as moved:
        moved(10)
        moved(20)

    assert re.fullmatch(r"  candidates +\d+\.\d\d s   30 rows, \d+ rows/s\n", shown.getvalue())
    assert progress.seconds.keys() == {"candidates"}


@pytest.mark.parametrize("total", [None, 3000])
def test_progress_of_rows_on_a_terminal_shows_a_bar(total: int | None) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=120, force_terminal=True)

    with Progress(console) as progress, progress.rows("vectors", total) as moved:
        moved(1000)
        moved(2000)

    assert "0 rows  0 rows/s" in shown.getvalue()  # drawn at once, then ten times a second


def test_progress_of_a_step_without_rows_tells_no_rate() -> None:
    shown = io.StringIO()

    with Progress(Console(file=shown, width=100)) as progress:
        with progress.rows("vectors", 0):
            pass
        with progress.step("towers"):
            pass

    assert "rows" not in shown.getvalue()
