"""Locations in a recipe or on a command line: a path on this machine, or a URL of a store."""

from __future__ import annotations

from pathlib import Path

from export.errors import UsageError
from object_store import locations
from object_store.locations import Location


def location_of(text: str, base: Path = Path()) -> Location:
    """Returns the location that a text names; a relative path is relative to `base`.

    A path is returned absolute, since table workers may run elsewhere.

    Raises:
      UsageError: The text is empty (for example a shell variable that is not set), or a URL that
        holds credentials or names an unknown store.
    """
    if not text:
        raise UsageError("an empty path was given; use '.' for the current directory")
    try:
        return locations.location_of(text, base.absolute())
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
