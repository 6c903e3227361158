"""Rows gathered, combined and prefetched, texts hashed, and candidates marked and collected, by
compiled code where it was built.

`_rows.c` is its Python interface, `hatch_build.py` builds it. Without it numpy does the same, to
the same bits.
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
    read_tables: Callable[..., int] | None = None
    """None, as `Rows`."""
    text_fingerprints: Callable[[NDArray[Any]], NDArray[np.uint64]] | None = None
    """None, as `Rows`."""
    column_fingerprints: (
        Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.uint64]] | None
    ) = None
    """None, as `Rows`."""
    mark: Callable[[NDArray[np.uint64], NDArray[np.uint32], bool], None] | None = None
    """None, as `Rows`."""
    where_marked: Callable[[NDArray[np.uint64], NDArray[np.uint32]], NDArray[np.uint32]] | None = (
        None
    )
    """None, as `Rows`."""
    marked: Callable[[NDArray[np.uint64]], NDArray[np.uint32]] | None = None
    """None, as `Rows`."""
    pack_codes: (
        Callable[[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint8]], None] | None
    ) = None
    """None, as `Rows`."""
    MISSING = str(problem)
    """The reason why there is no compiled code; empty if there is."""
else:
    Rows = _rows.Rows
    read_tables = _rows.read_tables
    text_fingerprints = _rows.text_fingerprints
    column_fingerprints = _rows.column_fingerprints
    mark = _rows.mark
    marked = _rows.marked
    where_marked = _rows.where_marked
    pack_codes = _rows.pack_codes
    MISSING = ""

__all__ = [
    "MISSING",
    "Rows",
    "column_fingerprints",
    "mark",
    "marked",
    "pack_codes",
    "read_tables",
    "text_fingerprints",
    "where_marked",
]
