"""Where model code finds the modules that it imports, beside rowcast's own packages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

RESERVED = ("bundle", "export", "object_store", "runtime", "service")
"""Top-level packages of rowcast."""
_PUBLIC = "export.model_code"


@contextlib.contextmanager
def on_search_path(folder: Path) -> Iterator[None]:
    """Adds `folder` to the end of the import path, so that the user's modules never hide rowcast's
    own.
    """
    entry = str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        # The last one: the folder may have been there already.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(entry)]


def hidden_package(problem: BaseException) -> str:
    """Returns the package of rowcast that hides the user's own, if it explains an error; else "".

    Args:
      problem: what model code raised.
    """
    name = ""
    if isinstance(problem, ImportError):
        name = problem.name or ""
    elif isinstance(problem, AttributeError) and isinstance(problem.obj, ModuleType):
        name = problem.obj.__name__
    package = name.partition(".")[0]
    is_meant = name == _PUBLIC  # a factory may import `definitions`
    return package if package in RESERVED and not is_meant else ""
