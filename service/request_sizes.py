"""How much memory a decoded request takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

_OBJECT_BYTES = 64
"""Size of a short text, or of another Python object, with the reference to it."""


def size_of(content: Any) -> int:
    """Returns about how many bytes the arrays and lists of a request take; its scalars do not
    count.

    Args:
      content: The request, or any value in it.
    """
    size = 0
    if isinstance(content, np.ndarray):
        size = content.nbytes
        if content.dtype.hasobject:
            size = content.size * _OBJECT_BYTES
    elif isinstance(content, list):
        size = len(content) * _OBJECT_BYTES
    elif isinstance(content, tuple):
        size = sum(map(size_of, content))
    elif isinstance(content, dict):
        size = sum(map(size_of, content.values()))
    elif dataclasses.is_dataclass(content):
        fields = dataclasses.fields(content)
        size = sum([size_of(getattr(content, field.name)) for field in fields])
    return size
