"""Results as people read them: by index, in slices, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from rowcast_client import Neighbor, Neighbors, RetrievalResult

PACKED = Neighbors(
    np.array([5, 6, 7]), np.array([3, 2, 1], np.float32), {"title": ["a", None, "c"]}
)
RESULT = RetrievalResult("m", 1, PACKED, np.array([0, 2, 2, 3]), searched=9)


def test_results_hold_the_rows_of_each_request_in_order() -> None:
    assert [neighbors.ids.tolist() for neighbors in RESULT] == [[5, 6], [], [7]]
    assert RESULT[-1][0] == Neighbor(7, 1.0, {"title": "c"})
    assert [len(neighbors) for neighbors in RESULT[1:]] == [0, 1]


def test_neighbors_are_plain_values_by_index_or_slice() -> None:
    first, second = RESULT[0]
    assert (second.id, second.attributes["title"], second.retrieval_score) == (6, None, None)
    assert type(first.id) is int
    assert type(first.score) is float
    assert isinstance(PACKED[1:], Neighbors)
    assert [neighbor.id for neighbor in PACKED[1:]] == [6, 7]


@pytest.mark.parametrize("values", [RESULT, PACKED])
def test_results_index_out_of_range_is_an_index_error(values: RetrievalResult | Neighbors) -> None:
    with pytest.raises(IndexError):
        values[3]
