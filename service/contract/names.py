"""Errors of names that clients send."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.shown_values import shown_first
from service.contract.similar_names import COMPARED_CHARS, nearest_name
from service.errors import InvalidArgument

LISTED_MAX = 10
"""Maximum number of unknown or missing names that an error lists: over gRPC, each is several times
in the metadata, of which clients take 8 KiB.
"""
_HINTS_MAX = 5
"""Maximum number of unknown names for which a similar accepted one is searched."""


def name_list(names: Sequence[str]) -> str:
    """Returns the first of some names, and how many follow."""
    return shown_first(names, LISTED_MAX)


def unknown_names(
    field: str, noun: str, names: Sequence[str], accepted: Sequence[str], expected: str, hint: str
) -> InvalidArgument:
    """Returns the error of names that a client sent and that are none of the accepted ones.

    Args:
      field: The field of the request that holds the names.
      noun: What a name is.
      names: The names, at least one.
      accepted: The names that are accepted.
      expected: What was expected, as a phrase in the singular.
      hint: What helps where no accepted name is like one that was sent.
    """
    texts = [repr(name[:COMPARED_CHARS]) for name in names]
    hints = []
    for name, text in zip(names[:_HINTS_MAX], texts, strict=False):
        nearest = nearest_name(name, accepted)
        if nearest is None:
            hints.append(hint)
        elif len(names) == 1:
            hints.append(f"did you mean {nearest!r}?")
        else:
            hints.append(f"did you mean {nearest!r} instead of {text}?")
    plural = "" if len(names) == 1 else "s"
    return InvalidArgument.of_field(
        field,
        name_list(texts),
        expected,
        f"has the unknown {noun}{plural}",
        " ".join(dict.fromkeys(filter(None, hints))),
    )
