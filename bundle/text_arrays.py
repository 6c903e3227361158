"""Arrays of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_array(texts: Sequence[str] | Sequence[bytes]) -> NDArray[Any]:
    """Returns texts as an array: [m] object holding str or bytes."""
    # np.array would take an empty list for numbers, and cut NULs off the ends of bytes.
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
