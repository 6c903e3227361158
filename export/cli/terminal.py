"""Keeps the terminal for the exporter's own output: results on stdout, progress and errors on
stderr, nothing else.

TensorFlow, its converter and LiteRT write to the file descriptors themselves, past every setting;
the user's model code prints. Only Python's own streams reach the terminal while a command works:
`print` of model code on stderr, so that stdout stays one JSON value.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from export.errors import ExportError

STDOUT = 1
STDERR = 2
REPORT_WIDTH = 160
"""The width in characters of a report that is printed to a file or a pipe."""
SENTENCE_CHARS_MAX = 8000
"""The largest length of an error: a library's message may hold a whole graph."""
_TAIL_BYTES = 16 << 10
"""The size of the end of native output that is shown with a bug."""
_CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""Characters that a terminal obeys instead of showing them: control characters, writing directions;
and halves of characters.
"""
_CONTROL_CHARACTER = re.compile(f"[{_CONTROL}]")
_CONTROL_CHARACTER_IN_REPORT = re.compile(f"(?!\n)[{_CONTROL}]")


class SafeReport:
    """A report whose names, which any program may have chosen, cannot command the terminal."""

    def __init__(self, report: RenderableType) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
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
    # A file or a pipe has no width, and rich would assume 80 characters.
    width: int | None = REPORT_WIDTH
    if sys.stdout.isatty():
        width = None
    Console(highlight=False, width=width).print(SafeReport(table))


def sentence(text: str) -> str:
    """Returns an error as one line: control characters are escaped, and the middle of a text that
    is too long is left out.
    """
    safe = _CONTROL_CHARACTER.sub(
        lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text
    )
    if len(safe) <= SENTENCE_CHARS_MAX:
        return safe
    half = SENTENCE_CHARS_MAX // 2
    return f"{safe[:half]} ... {safe[-half:]}"


@contextlib.contextmanager
def native_output_hidden() -> Iterator[None]:
    """Hides native output while the block runs; if the block ends in a bug, the end of this output
    is shown with the bug.
    """
    with contextlib.ExitStack() as restored, tempfile.TemporaryFile() as hidden:
        # Python streams write to this copy, because the descriptor itself leads to the hidden file.
        terminal = restored.enter_context(
            os.fdopen(os.dup(STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        )
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
