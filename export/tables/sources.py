"""Layouts as the manifest states them, and back."""

from __future__ import annotations

from dataclasses import asdict

from bundle.format.manifest import TableSource
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore

_LAYOUTS = {kind.kind: kind for kind in (Plain, Mod, SparseCore)}


def source_of(layout: Layout, key: str, *, stated: bool = False) -> TableSource:
    """Returns the manifest's form of the layout of a table in the variable `key`.

    Args:
      layout: The layout.
      key: The key of the variable.
      stated: Whether the user states the layout, which nothing records.
    """
    return TableSource(layout=layout.kind, key=key, stated=stated, **asdict(layout))


def layout_of(source: TableSource) -> Layout:
    """Returns the layout that the manifest states."""
    return _LAYOUTS[source.layout](
        **source.model_dump(exclude={"layout", "key", "stated"}, exclude_none=True)
    )
