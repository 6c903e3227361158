"""Values of files as messages repeat them."""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

SHOWN_MAX = 200
"""The maximum number of characters of a value that a message repeats."""
_NAMES_SHOWN_MAX = 20
"""The maximum number of names that a message lists."""

_SHORTENED = reprlib.Repr()
_SHORTENED.maxlevel = 3
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxdict = 8
_SHORTENED.maxstring = _SHORTENED.maxother = _SHORTENED.maxlong = SHOWN_MAX


def shown(value: object) -> str:
    """Returns the representation of a value, shortened to about SHOWN_MAX characters.

    Few parts of it are looked at: lists that share their parts can have a representation without
    end.
    """
    text = _SHORTENED.repr(value)
    if len(text) <= SHOWN_MAX:
        return text
    return f"{text[:SHOWN_MAX]}…"


def shown_names(names: Collection[str]) -> str:
    """Returns a list of names, of which the first are shown, each shortened."""
    listed = [name[:SHOWN_MAX] for name in islice(names, _NAMES_SHOWN_MAX)]
    if len(names) > _NAMES_SHOWN_MAX:
        listed.append(f"and {len(names) - _NAMES_SHOWN_MAX} more")
    return ", ".join(listed)


def shown_first(texts: Sequence[str], count_max: int, separator: str = ", ") -> str:
    """Returns the first texts of a list, and how many follow."""
    listed = separator.join(texts[:count_max])
    if len(texts) > count_max:
        return f"{listed} and {len(texts) - count_max} more"
    return listed


def similar_name(wrong: str, names: Iterable[str]) -> str:
    """Returns a clause with the name that may be meant, to be written after a wrong one; "" if none
    is close.
    """
    close_matches = difflib.get_close_matches(wrong, list(names), n=1, cutoff=0.7)
    if not close_matches:
        return ""
    return f" (did you mean {close_matches[0]!r}?)"


def similar_file(missing: Path) -> str:
    """Returns a clause with the name of a file that may be meant, to be written after the path of a
    missing one; "" if none is close, or if the file exists.
    """
    try:
        names = os.listdir(missing.parent)
    except OSError:
        return ""
    if missing.name in names:
        return ""
    return similar_name(missing.name, names)
