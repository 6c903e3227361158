"""Layouts as the manifest tells them, and back."""

from __future__ import annotations

from dataclasses import asdict

from bundle.format.manifest import TableSource
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore

_LAYOUTS = {kind.kind: kind for kind in (Plain, Mod, SparseCore)}


def source_of(layout: Layout, key: str, *, stated: bool = False) -> TableSource:
    """Returns a layout of the variable `key` as the manifest tells it; `stated` as there."""
    return TableSource(layout=layout.kind, key=key, stated=stated, **asdict(layout))


def layout_of(source: TableSource) -> Layout:
    """Returns the layout that the manifest tells."""
    return _LAYOUTS[source.layout](
        **source.model_dump(exclude={"layout", "key", "stated"}, exclude_none=True)
    )
