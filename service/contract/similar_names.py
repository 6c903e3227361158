"""Accepted names that a client may mean.

`scripts/generate_stubs` copies this module to the client, which is a distribution of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

COMPARED_CHARS = 64
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


def nearest_name(name: str, accepted: Sequence[str]) -> str | None:
    """Returns the accepted name that a client's means, or is most like; None if none is close.

    The comparison takes time that grows with the length of the name and the number of names. Both
    are bounded, since the name comes from a client and the event loop waits.
    """
    if len(name) > COMPARED_CHARS:
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
