"""Results of merged requests: each request gets what belongs to its own examples."""

from __future__ import annotations

import numpy as np

from bundle.tables.offsets import offsets_of
from service.contract.forms import IdLists
from service.contract.merging import split
from service.contract.messages import LookupResult


def test_each_lookup_gets_its_own_lost_and_missing_ids() -> None:
    ids = np.array([7, 8, 9, 10, 11])
    is_missing = np.array([True, False, False, True, False])
    lost = np.array([False, True, False, False, True])
    merged = LookupResult(
        "m",
        1,
        "users",
        np.arange(10, dtype=np.float32).reshape(5, 2),
        found=~(is_missing | lost),
        lost=lost,
        not_found=IdLists(ids[is_missing], offsets_of(is_missing)),
    )
    first, second = split(merged, np.array([0, 2, 5]))
    assert first.not_found.ids.tolist() == [7]
    assert first.lost.tolist() == [False, True]
    assert second.not_found.ids.tolist() == [10]
    assert second.lost.tolist() == [False, False, True]
    assert second.found.tolist() == [True, False, False]
