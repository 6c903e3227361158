"""Keeps the terminal for what the exporter says: results on stdout, progress and errors on stderr, nothing else.

TensorFlow, its converter and LiteRT write to the file descriptors themselves, past every setting; user's model code
prints. Only Python's own streams reach the terminal while a command works: `print` of model code on stderr, so that
stdout stays one JSON page.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any, TextIO

import orjson
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from export.errors import ExportError

STDOUT, STDERR = 1, 2
PAGE_WIDTH = 160
"""Of what is printed to a file or a pipe."""
SENTENCE_CHARS_MAX = 8000
_TAIL_BYTES = 16 << 10
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""What a terminal obeys instead of showing it: control characters, writing directions; and halves of characters."""
_OBEYED = re.compile(f"[{_UNSEEN}]")
_OBEYED_IN_PAGE = re.compile(f"(?!\n)[{_UNSEEN}]")


class Shown:
    """A page whose names, which any program may have chosen, cannot command the terminal."""

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._page, options):
            text = segment.text if segment.control else _OBEYED_IN_PAGE.sub("\N{REPLACEMENT CHARACTER}", segment.text)
            yield Segment(text, segment.style, segment.control)


def print_page(page: dict[str, Any], table: Any, as_json: bool) -> None:
    """Prints a result to stdout: a page as JSON, or a table of rich."""
    if as_json:
        try:
            text = orjson.dumps(page, option=orjson.OPT_INDENT_2).decode()
        except orjson.JSONEncodeError:  # a path that is no UTF-8, which only escapes can tell
            text = json.dumps(page, indent=2)
        sys.stdout.write(text + "\n")
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else PAGE_WIDTH).print(Shown(table))


def sentence(text: str) -> str:
    """Returns an error as one line: what a terminal would obey is escaped, the middle of what is too long left out."""
    told = _OBEYED.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    half = SENTENCE_CHARS_MAX // 2
    return told if len(told) <= SENTENCE_CHARS_MAX else f"{told[:half]} ... {told[-half:]}"


@contextlib.contextmanager
def kept_clean() -> Iterator[None]:
    """Puts native output aside while the block runs; if the block ends in a bug, its tail is shown with the bug."""
    with contextlib.ExitStack() as ways_back, tempfile.TemporaryFile() as aside:
        stderr = _own_stderr()
        if stderr is not None:
            ways_back.callback(stderr.close)
            ways_back.enter_context(contextlib.redirect_stderr(stderr))
        for descriptor in (STDOUT, STDERR):
            ways_back.enter_context(_turned(descriptor, aside))
        ways_back.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        except ExportError:
            raise  # tells its cause itself
        except Exception as problem:
            if isinstance(problem.__cause__ or problem.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from problem  # native modules tell it as their own failure to load
            sys.stderr.write(_tail(aside))
            raise


def _own_stderr() -> TextIO | None:
    """Returns a stream to where stderr goes now, None if Python's own does not write by its file descriptor."""
    stream = sys.stderr
    try:
        if stream.fileno() != STDERR:
            return None
    except (OSError, ValueError):  # a stream in memory, or closed
        return None
    stream.flush()
    return os.fdopen(os.dup(STDERR), "w", buffering=1, encoding=stream.encoding, errors="backslashreplace")


@contextlib.contextmanager
def _turned(descriptor: int, file: IO[bytes]) -> Iterator[None]:
    try:
        kept = os.dup(descriptor)
    except OSError:  # closed: nothing can be written to it
        yield
        return
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
