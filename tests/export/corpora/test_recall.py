from __future__ import annotations

import pytest

from export.corpora.recall import wilson_low


@pytest.mark.parametrize(
    ("share", "queries", "low"),
    [
        (0.9, 100, 0.825635),  # R: prop.test(90, 100, correct = FALSE)
        (0.5, 10, 0.236593),  # R: prop.test(5, 10, correct = FALSE)
        (1.0, 10, 0.722467),
        (0.0, 10, 0.0),
    ],
)
def test_wilson_low_is_the_lower_end_of_the_score_interval(
    share: float, queries: int, low: float
) -> None:
    assert wilson_low(share, queries) == pytest.approx(low, abs=1e-6)
