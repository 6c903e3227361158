from __future__ import annotations

import pytest

from benchmarks import cores


@pytest.mark.parametrize(
    ("given", "serving", "loading"),
    [
        ([0], {0}, {0}),
        ([3, 1], {1, 3}, {1, 3}),
        ([0, 1, 2], {0, 1, 2}, {0, 1, 2}),
        ([7, 0, 5, 4], {0, 4}, {5, 7}),
    ],
)
def test_load_has_cores_of_its_own_where_there_are_enough(
    given: list[int], serving: set[int], loading: set[int]
) -> None:
    assert cores.split(given) == (serving, loading)
