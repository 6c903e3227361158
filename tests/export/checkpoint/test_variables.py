from __future__ import annotations

import pytest

from export.checkpoint.variables import RANK_MAX, can_be


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), True),
        ((0, 5), True),
        ((-1,), False),
        ((1,) * RANK_MAX, True),
        ((1,) * (RANK_MAX + 1), False),
        (((1 << 59) - 1,), True),
        ((1 << 29, 1 << 30), False),
        ((0, 1 << 59), False),  # of one row it would be too many
    ],
)
def test_can_be_accepts_shapes_of_few_axes_whose_bytes_63_bits_count(
    shape: tuple[int, ...], expected: bool
) -> None:
    assert can_be(shape) is expected
