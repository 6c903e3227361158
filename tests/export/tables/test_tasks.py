from __future__ import annotations

import pytest

from export.tables.tasks import block_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("lanes", "remote", "expected"),
    [
        (1, False, MIB),
        (1, True, MIB),
        (2, False, MIB // 4),  # 128 KiB of each
        (64, False, 8 * MIB),
        (4096, False, 8 * MIB),
        (2, True, 64 * MIB),
    ],
)
def test_block_bytes_keep_rows_of_lanes_in_the_cache_but_for_those_of_a_store(
    lanes: int, remote: bool, expected: int
) -> None:
    assert block_bytes(lanes, 1 << 40, remote=remote) == expected


@pytest.mark.parametrize(("budget_bytes", "expected"), [(MIB, MIB // 2), (1, 1)])
def test_block_bytes_are_half_of_a_small_budget(budget_bytes: int, expected: int) -> None:
    assert block_bytes(4096, budget_bytes, remote=True) == expected
