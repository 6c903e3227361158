from __future__ import annotations

import pytest

from bundle.tables.shards import RowMap, RowRange, cut, shard_rows


def test_cut_covers_every_row_once() -> None:
    assert cut(10, 4) == (RowRange(0, 4), RowRange(4, 4), RowRange(8, 2))
    assert cut(8, 4) == (RowRange(0, 4), RowRange(4, 4))
    assert cut(0, 4) == ()


@pytest.mark.parametrize(("rows", "rows_max"), [(-1, 4), (3, 0)])
def test_cut_into_nothing_is_refused(rows: int, rows_max: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        cut(rows, rows_max)


def test_shard_rows_are_whole_and_at_least_one() -> None:
    assert shard_rows(128, 1000) == 7
    assert shard_rows(2000, 1000) == 1


def test_row_map_ranges_hold_exactly_the_wanted_rows() -> None:
    row_map = RowMap([3, 1, 5])
    for first in range(9):
        for rows in range(9 - first):
            parts = row_map.ranges(RowRange(first, rows))
            found = [int(row_map.starts[shard]) + row for shard, part in parts for row in range(part.first, part.end)]
            assert found == list(range(first, first + rows))
