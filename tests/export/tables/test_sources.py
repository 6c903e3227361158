from __future__ import annotations

import pytest

from bundle.format.manifest import TableSource
from export.checkpoint.layouts import Layout, Mod, Plain, SparseCore
from export.tables.sources import layout_of, source_of


@pytest.mark.parametrize("layout", [Plain(), Mod((0, 4, 7)), SparseCore(4, 1024, 16, 0), SparseCore(8, 64, 0, 3)])
def test_layout_survives_its_page(layout: Layout) -> None:
    source = source_of(layout, "stack")
    assert source.key == "stack"
    assert layout_of(TableSource.model_validate_json(source.model_dump_json())) == layout
