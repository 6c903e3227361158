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
        self._counted.stop()
        self._plain.stop()

    @contextmanager
    def step(self, name: str, total_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Shows one step while its block runs.

        Args:
          name: what is done, e.g. `tables`.
          total_bytes: bytes the step will move; 0 when it is not measured in bytes.

        Yields:
          A function that takes the bytes moved since it was last called.
        """
        bars = self._counted if total_bytes else self._plain
        bars.start()
        task = bars.add_task(name, total=total_bytes or None)
        began = time.perf_counter()
        try:
            yield lambda moved: bars.update(task, advance=moved)
        finally:
            bars.remove_task(task)
            bars.stop()
        self.seconds[name] = time.perf_counter() - began
        self._console.print(f"  {name:<22} {self.seconds[name]:7.2f} s", highlight=False)
