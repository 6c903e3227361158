"""Keeps the terminal for what the exporter says: results on stdout, progress and errors on stderr,
nothing else.

TensorFlow, its converter and LiteRT write to the file descriptors themselves, past every setting;
user's model code prints. Only Python's own streams reach the terminal while a command works:
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
"""The width in characters of what is printed to a file or a pipe."""
SENTENCE_CHARS_MAX = 8000
_TAIL_BYTES = 16 << 10
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""What a terminal obeys instead of showing it: control characters, writing directions; and halves
of characters.
"""
_OBEYED = re.compile(f"[{_UNSEEN}]")
_OBEYED_IN_REPORT = re.compile(f"(?!\n)[{_UNSEEN}]")


class Shown:
    """A report whose names, which any program may have chosen, cannot command the terminal."""

    def __init__(self, report: RenderableType) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._report, options):
            text = (
                segment.text
                if segment.control
                else _OBEYED_IN_REPORT.sub("\N{REPLACEMENT CHARACTER}", segment.text)
            )
            yield Segment(text, segment.style, segment.control)


def print_report(report: dict[str, Any], table: Any, as_json: bool) -> None:
    """Prints a result to stdout: a report as JSON, or a table of rich."""
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")  # escaped: a path may be no UTF-8
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else REPORT_WIDTH).print(
            Shown(table)
        )


def sentence(text: str) -> str:
    """Returns an error as one line: what a terminal would obey is escaped, the middle of what is
    too long left out.
    """
    safe = _OBEYED.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )
    half = SENTENCE_CHARS_MAX // 2
    return safe if len(safe) <= SENTENCE_CHARS_MAX else f"{safe[:half]} ... {safe[-half:]}"


@contextlib.contextmanager
def kept_clean() -> Iterator[None]:
    """Puts native output aside while the block runs; if the block ends in a bug, its tail is shown
    with the bug.
    """
    with contextlib.ExitStack() as ways_back, tempfile.TemporaryFile() as aside:
        shown = ways_back.enter_context(
            os.fdopen(os.dup(STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        )
        for descriptor in (STDOUT, STDERR):
            kept = os.dup(descriptor)
            ways_back.callback(os.close, kept)
            ways_back.callback(os.dup2, kept, descriptor)
            os.dup2(aside.fileno(), descriptor)
        ways_back.enter_context(contextlib.redirect_stdout(shown))
        ways_back.enter_context(contextlib.redirect_stderr(shown))
        try:
            yield
        except ExportError:
            raise  # the message includes its cause
        except Exception as problem:
            if isinstance(problem.__cause__ or problem.__context__, KeyboardInterrupt):
                # native modules report it as their own failure to load
                raise KeyboardInterrupt from problem
            size = os.fstat(aside.fileno()).st_size
            shown.write(
                os.pread(aside.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(
                    errors="replace"
                )
            )
            raise
