"""Names that clients send, and the accepted ones that they may mean."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from service.errors import InvalidArgument

LISTED_MAX = 10
"""Maximum number of unknown or missing names that an error lists: over gRPC, each is several times
in the metadata, of which clients take 8 KiB.
"""
_HINTS_MAX = 5
"""Maximum number of unknown names for which a similar accepted one is searched."""
_COMPARED_CHARS = 64
"""Maximum length of a name for which a similar accepted one is searched."""
_NAMES_COMPARED_MAX = 64
"""Maximum number of accepted names that a client's name is compared with: each costs about
30 µs.
"""
_LENGTH_DIFFERENCE_MAX = 2
"""Maximum difference in length of names that are compared where there are many."""
_SYNONYMS = {
    "and": "all",
    "eq": "allow",
    "gte": "ge",
    "in": "allow",
    "limit": "k",
    "lte": "le",
    "max": "le",
    "min": "ge",
    "ne": "deny",
    "nin": "deny",
    "not": "none",
    "or": "any",
    "top_k": "k",
}
"""What other services call fields of requests and filters, without a leading $; by their letters,
some would be taken for others: gte for gt.
"""


def name_list(names: Sequence[str]) -> str:
    """Returns the first of some names, and how many follow."""
    text = ", ".join(names[:LISTED_MAX])
    if len(names) > LISTED_MAX:
        text = f"{text} and {len(names) - LISTED_MAX} more"
    return text


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
    texts = [repr(name[:_COMPARED_CHARS]) for name in names]
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


def nearest_name(name: str, accepted: Sequence[str]) -> str | None:
    """Returns the accepted name that a client's means, or is most like; None if none is close.

    The comparison takes time that grows with the length of the name and the number of names. Both
    are bounded, since the name comes from a client and the event loop waits.
    """
    if len(name) > _COMPARED_CHARS:
        return None
    synonym = _SYNONYMS.get(name.lower().removeprefix("$"), "")
    if synonym in accepted:
        return synonym
    compared = accepted
    if len(accepted) > _NAMES_COMPARED_MAX:
        # A misspelt name usually begins right, and is about as long.
        compared = [
            accepted_name
            for accepted_name in accepted
            if accepted_name[:1] == name[:1]
            and abs(len(accepted_name) - len(name)) <= _LENGTH_DIFFERENCE_MAX
        ][:_NAMES_COMPARED_MAX]
    close_names = difflib.get_close_matches(name, compared, n=1)
    if not close_names:
        return None
    return close_names[0]
