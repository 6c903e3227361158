"""A segment with deltas reads like the one that was written last, whatever they replace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.format.checksums import crc32c
from bundle.format.tables import Segment
from bundle.tables.maps import MappedRows
from bundle.tables.row_deltas import RANGE_ROWS, differing_rows
from bundle.tables.segment_writer import SegmentWriter
from bundle.tables.segments import RowRange
from tests.bundles.deltas import with_delta


def written(
    root: Path, row_bytes: int, rows: int, changes: list[np.ndarray], seed: int
) -> tuple[Segment, np.ndarray]:
    """Writes a segment and a delta for each set of changed rows; returns what it holds then."""
    generator = np.random.default_rng(seed)
    content = generator.integers(0, 256, (rows, row_bytes), np.uint8)
    with SegmentWriter(root / "rows.bin") as writer:
        writer.write(content)
        digest = writer.close()
    segment = Segment(
        file="rows.bin", first_row=0, rows=rows, crc32c=digest.crc32c, blocks=digest.blocks
    )
    for changed in changes:
        content[changed] = generator.integers(0, 256, (changed.size, row_bytes), np.uint8)
        segment = with_delta(root, segment, changed, content[changed], crc32c(content))
    return segment, content


@given(data=st.data())
def test_a_segment_with_deltas_reads_like_the_rows_that_it_holds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("deltas")
    rows = data.draw(st.sampled_from([1, 2, 63, 64, 65, 700, RANGE_ROWS, RANGE_ROWS + 3, 140_000]))
    row_bytes = data.draw(st.sampled_from([1, 4, 7, 16, 20]))
    seed = data.draw(st.integers(0, 1 << 30))
    generator = np.random.default_rng(seed)
    changes = []
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.sampled_from([1, min(2, rows), max(1, rows // 3), rows]))
        changes.append(np.sort(generator.choice(rows, count, replace=False)))
    segment, content = written(root, row_bytes, rows, changes, seed)
    mapped = MappedRows(root, [segment], row_bytes)
    ids = generator.integers(0, rows, 500)
    np.testing.assert_array_equal(mapped.take(ids), content[ids])
    first = int(generator.integers(0, rows))
    count = int(generator.integers(0, rows - first + 1))
    np.testing.assert_array_equal(
        mapped.read(RowRange(first, count)), content[first : first + count]
    )


@given(rows=st.integers(0, 50), row_bytes=st.integers(1, 24), seed=st.integers(0, 1 << 30))
def test_differing_rows_are_those_with_another_byte(rows: int, row_bytes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    old = generator.integers(0, 2, (rows, row_bytes), np.uint8)
    new = generator.integers(0, 2, (rows, row_bytes), np.uint8)
    expected = [row for row in range(rows) if old[row].tobytes() != new[row].tobytes()]
    assert differing_rows(old, new).tolist() == expected
