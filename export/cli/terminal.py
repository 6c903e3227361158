"""Keeps the terminal for the exporter's own output: results on stdout, progress and errors on
stderr, nothing else.

TensorFlow, its converter and LiteRT write to the file descriptors themselves, past every setting;
the user's model code prints. Only Python's own streams reach the terminal while a command works:
`print` of model code on stderr, so that stdout stays one JSON value.

rich is imported where it is used: `--help` does without.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from command_line.program import CONTROL, dropping_stream
from export.errors import ExportError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

STDOUT = 1
STDERR = 2
REPORT_WIDTH = 160
"""The width in characters of a report that is printed to a file or a pipe."""
_TAIL_BYTES = 16 << 10
"""The size of the end of native output that is shown with a bug."""
_CONTROL_CHARACTER_IN_REPORT = re.compile(f"(?!\n)[{CONTROL}]")


class SafeReport:
    """A report whose names, which any program may have chosen, cannot command the terminal."""

    def __init__(self, report: RenderableType) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self._report, options):
            text = segment.text
            # Segments of control are rich's own.
            if not segment.control:
                text = _CONTROL_CHARACTER_IN_REPORT.sub("\N{REPLACEMENT CHARACTER}", text)
            yield Segment(text, segment.style, segment.control)


def print_report(report: dict[str, Any], table: Any, as_json: bool) -> None:
    """Prints a result to stdout: a report as JSON, or a table of rich."""
    if as_json:
        # JSON escapes what is no ASCII, such as a path that is no UTF-8.
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    from rich.console import Console

    # A file or a pipe has no width, and rich would assume 80 characters.
    width: int | None = REPORT_WIDTH
    if sys.stdout.isatty():
        width = None
    Console(highlight=False, width=width).print(SafeReport(table))


def error_console() -> Console:
    """Returns the console of progress, on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def native_output_hidden() -> Iterator[None]:
    """Hides native output while the block runs; if the block ends in a bug, the end of this output
    is shown with the bug.
    """
    with contextlib.ExitStack() as restored, tempfile.TemporaryFile() as hidden:
        # Python streams write to this copy, because the descriptor itself leads to the hidden file.
        stderr = restored.enter_context(
            os.fdopen(os.dup(STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        )
        # A full disk of the log does not end an export.
        terminal = dropping_stream(stderr, [])
        # Callbacks run from the last to the first: a descriptor is restored before its copy closes.
        for descriptor in (STDOUT, STDERR):
            copy = os.dup(descriptor)
            restored.callback(os.close, copy)
            restored.callback(os.dup2, copy, descriptor)
            os.dup2(hidden.fileno(), descriptor)
        restored.enter_context(contextlib.redirect_stdout(terminal))
        restored.enter_context(contextlib.redirect_stderr(terminal))
        try:
            yield
        except ExportError:
            # The message includes its cause.
            raise
        except Exception as problem:
            # Native modules report an interruption as their own failure to load.
            if isinstance(problem.__cause__ or problem.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from problem
            size = os.fstat(hidden.fileno()).st_size
            tail = os.pread(hidden.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            terminal.write(tail.decode(errors="replace"))
            raise
