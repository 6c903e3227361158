"""Rows read and combined by compiled code, where it was built (`hatch_build.py`); numpy does the same elsewhere.

`_rows.c` is the Python face of `kernels.h`. Both ways give the same bits, so nothing but speed tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from bundle.native import _rows
except ImportError as problem:
    Rows: Callable[..., _rows.Rows] | None = None
    """None: it was not built, or does not fit this Python."""
    beside: Callable[..., int] | None = None
    """None, as `Rows`."""
    integers: Callable[[list[Any]], NDArray[np.int64] | None] | None = None
    """None, as `Rows`."""
    MISSING = str(problem)
    """Why there is none; empty if there is."""
else:
    Rows, beside, integers, MISSING = _rows.Rows, _rows.beside, _rows.integers, ""

__all__ = ["MISSING", "Rows", "beside", "integers"]
