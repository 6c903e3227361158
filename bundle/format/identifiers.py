"""The names of tensors: identifiers of Python, whatever an input is called."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable


def identifier(text: str) -> str:
    """Returns a name that is valid in Python and in a TensorFlow graph."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    if not name or name[0].isdigit() or name[0] == "_" or keyword.iskeyword(name):
        return f"input_{name}"
    return name


def distinct_identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns a distinct Python identifier for each name, as signatures require."""
    identifiers: dict[str, str] = {}
    for name in names:
        chosen = identifier(name)
        while chosen in identifiers.values():
            chosen += "_"
        identifiers[name] = chosen
    return identifiers
