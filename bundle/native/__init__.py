"""Rows read, combined and converted, packed values taken out of request bodies: by compiled code where it was built.

`_rows.c` is the Python face of it, `hatch_build.py` builds it. Elsewhere numpy, and the libraries of JSON and protobuf,
do the same. Both ways give the same bits, but for the last digits of sums of errors, so nothing but speed tells them
apart.
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
    plain_lists: Callable[[bytes, str], tuple[dict[str, NDArray[np.int64]], bytes] | None] | None = None
    """None, as `Rows`."""
    plain_columns: Callable[[bytes, tuple[int, ...], type[tuple[Any, ...]]], tuple[Any, ...] | None] | None = None
    """None, as `Rows`."""
    nearest: Callable[..., tuple[NDArray[np.int64], NDArray[np.float32]]] | None = None
    """None, as `Rows`."""
    converted: Callable[[NDArray[np.float32], str], _rows.Converted] | None = None
    """None, as `Rows`."""
    MISSING = str(problem)
    """Why there is none; empty if there is."""
else:
    Rows, beside, nearest = _rows.Rows, _rows.beside, _rows.nearest
    integers, plain_lists, plain_columns = _rows.integers, _rows.plain_lists, _rows.plain_columns
    converted = _rows.converted
    MISSING = ""

__all__ = ["MISSING", "Rows", "beside", "converted", "integers", "nearest", "plain_columns", "plain_lists"]
