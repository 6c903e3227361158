"""Rows gathered, combined and prefetched by compiled code where it was built.

`_rows.c` is its Python interface, `hatch_build.py` builds it. Without it numpy does the same, to
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

try:
    from bundle.native import _rows
except ImportError as problem:
    Rows: Callable[..., _rows.Rows] | None = None
    """None: it was not built, or does not fit this Python."""
    read_tables: Callable[..., int] | None = None
    """None, as `Rows`."""
    MISSING = str(problem)
    """The reason why there is no compiled code; empty if there is."""
else:
    Rows = _rows.Rows
    read_tables = _rows.read_tables
    MISSING = ""

__all__ = ["MISSING", "Rows", "read_tables"]
