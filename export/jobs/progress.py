"""How far a job is: a bar with its rate and time left on a terminal, one line per finished step
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich import progress
from rich.console import Console

from export.report_text import size_text

Unit = Literal["bytes", "rows"]
_QUIET = Console(quiet=True)
"""Shows nothing."""


class Progress:
    """Shows the steps of one job on stderr."""

    def __init__(self, console: Console = _QUIET) -> None:
        self._console = console
        self.seconds: dict[str, float] = {}
        self._bars = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description:<22}"),
            progress.BarColumn(24),
            progress.TextColumn("{task.fields[rate_text]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    @contextmanager
    def step(
        self, name: str, total: int = 0, unit: Unit = "bytes"
    ) -> Iterator[Callable[[int], None]]:
        """Shows one step while its block runs.

        Args:
          name: The name of the step, such as `tables`.
          total: The number of units that the step will move; 0: it is not measured, or not known
            before the end.
          unit: The unit of `total`, and of what the yielded function takes.

        Yields:
          A function that takes what was moved since it was last called.
        """
        self._bars.start()
        task = self._bars.add_task(name, total=total or None, rate_text="")
        done = 0
        began = time.perf_counter()

        def moved(more: int) -> None:
            nonlocal done
            done += more
            self._bars.update(
                task, advance=more, rate_text=_rate(done, time.perf_counter() - began, unit)
            )

        try:
            yield moved
        finally:
            self._bars.remove_task(task)
            self._bars.stop()
        self.seconds[name] = time.perf_counter() - began
        line = f"  {name:<22} {self.seconds[name]:7.2f} s"
        if done:
            line += f"   {_rate(done, self.seconds[name], unit)}"
        self._console.print(line, highlight=False)

    def note(self, name: str, text: str) -> None:
        """Shows a line that is no step."""
        self._console.print(f"  {name:<22} {text}", highlight=False)


def _rate(done: int, seconds: float, unit: Unit) -> str:
    # A clock may not advance during a short step.
    speed = int(done / max(seconds, 1e-9))
    if unit == "rows":
        return f"{done} rows, {speed} rows/s"
    return f"{size_text(done)}, {size_text(speed)}/s"
