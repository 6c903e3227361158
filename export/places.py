"""Where a recipe's or a command line's text points: a path of this machine, or a URL of a store."""

from __future__ import annotations

from pathlib import Path

from export.errors import UsageError
from runtime.object_store import Place, located


def place_of(text: str, base: Path = Path()) -> Place:
    """Returns the place that a text means; a relative path is relative to `base`.

    A path comes back absolute: table workers may run elsewhere.

    Raises:
      UsageError: nothing (a variable of a shell that is not set), a URL that holds credentials, or of a store that is
        not known.
    """
    if not text:
        raise UsageError("an empty path was given; '.' is the directory where you stand")
    try:
        return located(text, base.absolute())
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
