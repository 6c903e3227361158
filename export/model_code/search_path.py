"""The import path of model code, which rowcast's own packages share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

RESERVED: tuple[str, ...] = ("rowcast",)
"""Top-level packages of rowcast."""
if __name__.startswith("export."):  # in the tree; in a wheel, all packages lie in one
    RESERVED += ("bundle", "export", "object_store", "rows", "runtime", "service", "tensors")
_PUBLIC = "rowcast.model_code"


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
        # The last such entry: the folder may have been on the path before.
        last_index = len(sys.path) - 1 - sys.path[::-1].index(entry)
        del sys.path[last_index]


def hidden_package(problem: BaseException) -> str:
    """Returns the package of rowcast that hides the user's own, if it explains an error; else "".

    Args:
      problem: The error that model code raised.
    """
    name = ""
    if isinstance(problem, ImportError):
        name = problem.name or ""
    elif isinstance(problem, AttributeError) and isinstance(problem.obj, ModuleType):
        name = problem.obj.__name__
    package = name.partition(".")[0]
    # A factory may import `definitions` from this package.
    if name == _PUBLIC or package not in RESERVED:
        return ""
    return package
