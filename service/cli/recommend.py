"""`rowcast-serve recommend`: options, progress bar and exit codes. The modules that recommend are
imported when it runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import orjson
import typer

from command_line.program import CommandError
from service.exit_codes import EXIT_INTERRUPTED
from service.resources import compute_threads, usable_cores

_COMMAND = "rowcast-serve recommend"
_LINE_S = 10.0
"""Time between two lines of progress, where no terminal shows a bar."""


class ProgressLines:
    """Writes how many users are done, every few seconds."""

    def __init__(
        self,
        write: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        *,
        every_s: float,
    ) -> None:
        """Starts now.

        Args:
          write: Takes a line, with its end.
          clock: Returns the current monotonic time in seconds.
          every_s: Minimum time between two lines, and before the first.
        """
        self._write = write
        self._clock = clock
        self._every_s = every_s
        self._began = clock()
        self._due = self._began + every_s

    def update(self, done: int, total: int) -> None:
        """Writes a line if one is due."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._every_s
        self._write(f"{done:,} of {total:,} users after {now - self._began:,.0f} s\n")


def recommend_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    users: Annotated[
        Path,
        typer.Argument(
            metavar="USERS", help="CSV, JSON-lines, Parquet or TFRecord file with one row per user."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Parquet file to write. An existing file is replaced; a link is followed.",
        ),
    ],
    id_column: Annotated[
        str,
        typer.Option(
            "--id", metavar="COLUMN", help="Column of USERS that identifies users in OUT."
        ),
    ],
    exclude: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Column of USERS with lists of candidates to exclude."),
    ] = "",
    options: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Options of the call recommend, such as k, filter or crowding."
        ),
    ] = "{}",
    root: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Directory of the bundles.", envvar="ROWCAST_ROOT", show_envvar=True
        ),
    ] = "",
    changes_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the changes, as DIR/MODEL/changes.sqlite; by default, --root. In an "
            "empty one, there are none.",
            envvar="ROWCAST_CHANGES_DIR",
            show_envvar=True,
        ),
    ] = None,
    version: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Version to use. 0 selects the version that a service would serve.",
        ),
    ] = 0,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of processes. 0: one per core.")
    ] = 0,
) -> None:
    """Write recommendations for all users in a file to OUT, without a running service.

    USERS has a column for each feature, or a column context_id. To resume an interrupted run, run
    the same command again. OUT appears only when it is complete.

    Exit codes: 0 OUT is complete, 1 a bug, 2 invalid usage, 3 the model or USERS cannot be read, 5
    a file of the bundle differs from its checksum, 6 OUT cannot be written, 130 interrupted.
    """
    # One thread in each process: users are divided among processes. Before TensorFlow is loaded.
    workers = workers or usable_cores()
    compute_threads(workers, 1, os.environ)
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from service.cli.batch_recommendation import BatchError, Task, run

    try:
        if type(orjson.loads(options)) is not dict:
            raise typer.BadParameter(f"--options is {options!r}; a JSON object was expected")
    except orjson.JSONDecodeError as problem:
        raise typer.BadParameter(f"--options is not valid JSON: {problem}") from None
    task = Task(Path(root), model, options, id_column, exclude, version, changes_dir=changes_dir)
    began = time.monotonic()
    console = Console(stderr=True)
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    lines = ProgressLines(sys.stderr.write, every_s=_LINE_S)
    try:
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            bar = progress.add_task("users")

            def report(finished: int, total: int) -> None:
                progress.update(bar, completed=finished, total=total)
                # The log of a scheduler shows lines, and no bar.
                if not console.is_terminal:
                    lines.update(finished, total)

            summary = run(task, users, out, workers, report)
    except BatchError as problem:
        message, code = problem.args
        raise CommandError(message, code, command=_COMMAND) from None
    except KeyboardInterrupt:
        raise CommandError(
            "interrupted; run again to continue", EXIT_INTERRUPTED, command=_COMMAND
        ) from None
    changes = "without changes"
    if summary.changes:
        changes = f"with its changes up to sequence {summary.changes} or later"
    sys.stdout.write(
        f"{out}: {summary.users:,} users by {model} version {summary.version}, {changes}, in "
        f"{time.monotonic() - began:,.1f} s; {summary.failed:,} have an error instead of a list; "
        f"{summary.done_before:,} were done by an earlier run\n"
    )
