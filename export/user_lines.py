"""Finds the user's own line behind an operation or an exception: what to change is there, not in a
library.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in ', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parent
_OWN = tuple(
    f"{_PACKAGE.with_name(name)}{os.sep}"
    for name in (
        "export",
        "rowcast",
        "command_line",
        "bundle",
        "object_store",
        "rows",
        "runtime",
        "tensors",
    )
)
"""The folders of the exporter's own code."""
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
_REWRITTEN = "__autograph_generated_file"
"""Part of the name of a file with a copy of code that AutoGraph rewrote."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders that libraries are in, of whichever environment."""
_CELL = ", cell "
"""Between the file of a notebook and the number of a cell: each cell has lines of its own."""


def line_of_operation(operation: Any) -> str:
    """Returns `file.py:12` where the user's code made an operation of a graph; "" where none is
    known.
    """
    try:
        frames = [(frame.filename, frame.lineno) for frame in operation.traceback or ()]
    except AttributeError:
        return ""
    return last_of_user(frames)


def line_of_exception(problem: BaseException) -> str:
    """Returns `file.py:12` where the user's code raised or called what raised; "" where none is
    known.
    """
    line = ""
    for cause in causes(problem):
        frames = [
            (frame.filename, frame.lineno) for frame in traceback.extract_tb(cause.__traceback__)
        ]
        # AutoGraph runs a rewritten copy of the user's code, and keeps the lines that it came from
        # beside the error; in its message once Keras or a tf.function has raised it again.
        rewritten = getattr(cause, "ag_error_metadata", None)
        if rewritten is not None:
            frames += [(frame.filename, frame.lineno) for frame in rewritten.translated_stack[::-1]]
        frames += [(name, int(number)) for name, number in _FRAME.findall(str(cause))]
        line = last_of_user(frames)
        if line:
            break
    return line


def causes(problem: BaseException) -> Iterator[BaseException]:
    """Yields an exception, and what caused it or was handled when it was raised, each once: an
    error that is raised again in place of another may be the cause of that.
    """
    seen: set[int] = set()
    cause: BaseException | None = problem
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        # Keras raises another error in the place of one, without its message.
        cause = cause.__cause__ or cause.__context__


def at_line(line: str) -> str:
    """Returns the line as the part of a sentence."""
    if not line:
        return ""
    return f" ({line})"


def last_of_user(frames: Iterable[tuple[str, int | None]]) -> str:
    """Returns the last of some frames, file and line, that is of the user's code; ""
    where none is.
    """
    frame = last_user_frame(frames)
    if frame is None:
        return ""
    filename, line = frame
    name = _shown_path(filename)
    if _CELL in name:
        return f"{name}, line {line}"
    return f"{name}:{line}"


def last_user_frame(
    frames: Iterable[tuple[str, int | None]],
) -> tuple[str, int | None] | None:
    """Returns the last of some frames, file and line, that is of the user's code; None where none
    is.
    """
    user_frames = [(name, line) for name, line in frames if _is_user(name)]
    if not user_frames:
        return None
    return user_frames[-1]


@cache
def runner_at(filename: str, line: int) -> Callable[[Callable[[], Any]], Any]:
    """Returns a function that calls another one as if a line of the user's code did: what
    TensorFlow records there has that line.
    """
    code = compile("\n" * (line - 1) + "lambda function: function()", filename, "eval")
    runner: Callable[[Callable[[], Any]], Any] = eval(code)  # noqa: S307 - it is written above
    return runner


def name_of_cell(notebook: Path, cell: int) -> str:
    """Returns what the code of a notebook's cell names as its file."""
    return f"{notebook}{_CELL}{cell}"


@cache
def _shown_path(filename: str) -> str:
    """Returns the path of a file from its package on: several packages have a `core.py`."""
    path = Path(filename)
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return str(path.relative_to(root))


def is_own_file(name: str) -> bool:
    """Returns whether a file has code of the exporter itself."""
    return name.startswith(_OWN)


def is_model_file(name: str) -> bool:
    """Returns whether a file has code of the user's, or a copy of it that AutoGraph rewrote."""
    return _is_user(name) or _REWRITTEN in name


def _is_user(name: str) -> bool:
    is_installed = is_own_file(name) or _REWRITTEN in name
    is_installed |= name.startswith((_STANDARD_LIBRARY, "<", sys.argv[0] or "<"))
    return not is_installed and _INSTALLED.isdisjoint(Path(name).parts)
