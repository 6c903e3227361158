"""Names and ids in requests: unknown names are rejected with a hint, and shown in messages at a
bounded length.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from service.errors import InvalidArgument
from service.versions.version import ModelVersion

_NAMES_SHOWN_MAX = 20
"""Maximum number of known names that a message lists."""
_COMPARED_CHARS = 64
"""Maximum length of a name for which a similar known one is searched."""
_NAMES_COMPARED_MAX = 64
"""Maximum number of known names that a given one is compared with: each costs about 30 µs."""
_LENGTH_DIFFERENCE_MAX = 2
"""Maximum difference in length of names that are compared where there are many."""
SHOWN_CHARS = 128
"""Characters shown of a name or id that a client sent."""


def check_names(sent: Iterable[str], known: Iterable[str], what: str, owner: str) -> None:
    """Rejects names that are not known: a misspelt feature must not silently become its default.

    Raises:
      InvalidArgument: names the first such name and the nearest known one.
    """
    known = known if isinstance(known, Mapping | Set) else set(known)
    for name in sent:
        if name not in known:
            hint = name_hint(name, known, "takes")
            raise InvalidArgument(f"{what} {name[:SHOWN_CHARS]!r} is unknown to {owner}; {hint}")


def name_hint(name: str, known: Iterable[str], verb: str) -> str:
    """Returns the name that was probably meant, or the known ones."""
    names = sorted(known)
    close = nearest_name(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    listed = ", ".join(map(repr, names[:_NAMES_SHOWN_MAX])) or "none"
    return f"it {verb} {listed}"


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that is most like a given one; None if none is close.

    The comparison takes time that grows with the length of the name and the number of names. Both
    are bounded, since the name comes from a client and the event loop waits.
    """
    if len(name) > _COMPARED_CHARS:
        return None
    if len(known) > _NAMES_COMPARED_MAX:
        # A misspelt name usually begins right, and is about as long.
        known = [
            each
            for each in known
            if each[:1] == name[:1] and abs(len(each) - len(name)) <= _LENGTH_DIFFERENCE_MAX
        ][:_NAMES_COMPARED_MAX]
    close = difflib.get_close_matches(name, known, n=1)
    return close[0] if close else None


def show_id(one: Any) -> str:
    """Returns an id as error messages show it."""
    return repr(one[:SHOWN_CHARS]) if isinstance(one, str) else str(one)


def show_version(model_version: ModelVersion) -> str:
    """Returns which version it is, as error messages name it."""
    return f"model {model_version.model!r} version {model_version.version}"
