"""How far a job is: a bar with bytes per second and time left on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich import progress as bars_of
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class Progress:
    """Shows the steps of one job on stderr; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seconds: dict[str, float] = {}
        self._counted = bars_of.Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(24),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._rows = bars_of.Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(24),
            _RowsColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._plain = bars_of.Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bars in (self._counted, self._rows, self._plain):
            bars.stop()

    @contextmanager
    def step(self, name: str, total_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Shows one step while its block runs.

        Args:
          name: what is done, e.g. `tables`.
          total_bytes: bytes the step will move; 0 when it is not measured in bytes.

        Yields:
          A function that takes the bytes moved since it was last called.
        """
        with self._shown(self._counted if total_bytes else self._plain, name, total_bytes or None) as moved:
            yield moved
        self._console.print(f"  {name:<22} {self.seconds[name]:7.2f} s", highlight=False)

    @contextmanager
    def rows(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Shows one step that goes through rows, with rows per second.

        Args:
          name: what is done.
          total: rows there are; None when that is known at the end only.

        Yields:
          A function that takes the rows dealt with since it was last called.
        """
        done = 0
        with self._shown(self._rows, name, total) as moved:

            def count(rows: int) -> None:
                nonlocal done
                done += rows
                moved(rows)

            yield count
        rate = f"   {done} rows, {done / max(self.seconds[name], 1e-9):.0f} rows/s" if done else ""
        self._console.print(f"  {name:<22} {self.seconds[name]:7.2f} s{rate}", highlight=False)

    @contextmanager
    def _shown(self, bars: bars_of.Progress, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        bars.start()
        task = bars.add_task(name, total=total)
        began = time.perf_counter()
        try:
            yield lambda moved: bars.update(task, advance=moved)
        finally:
            bars.remove_task(task)
            bars.stop()
        self.seconds[name] = time.perf_counter() - began


class _RowsColumn(bars_of.ProgressColumn):
    def render(self, task: bars_of.Task) -> Text:
        """Returns rows and rows per second."""
        return Text(f"{task.completed:,.0f} rows  {task.speed or 0:,.0f} rows/s")
