"""Lists of neighbors: what an explanation counts, and pages of a pool."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import deny, responds
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
CHOSEN: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (4, 36, 37), (0, 3, 36, 39))
"""Positions of candidates that are denied or excluded."""
TREE = {"num_leaves": 20, "leaves_to_search": 3, "dimensions_per_block": 2, "reorder": 20}


def test_explanation_counts_what_is_allowed(write: Write, serve: Serve) -> None:
    """Denied and excluded candidates count once each, whether or not they match or coincide."""
    ids = write().ids.tolist()
    service = serve()
    body: dict[str, Any] = {"vectors": [[1.0] * 8], "k": 40, "explain": True}
    for denied in CHOSEN:
        deny(service, *[ids[position] for position in denied])
        for excluded, year, exact in product(CHOSEN, (1990, 2020), (False, True)):
            excluded_ids = [ids[position] for position in excluded]
            options: dict[str, Any] = {"exact": exact, "exclude_ids": excluded_ids}
            options["filter"] = {"year": {"ge": year}}
            result = responds(service, "retrieve", **body, **options)
            count = len(result["ids"])
            explanation = result["explanation"]
            assert explanation["matches"] == count, (denied, options)
            assert explanation["selectivity"] == pytest.approx(count / 40)


@pytest.mark.parametrize("call", ["retrieve", "recommend"])
def test_pages_of_a_pool_make_up_its_list(call: str, write: Write, serve: Serve) -> None:
    write(size=400, index_kind="tree_ah", parameters=TREE)
    service = serve()
    cases: list[dict[str, Any]] = [
        {},
        {"formula": "-score"},
        {"diversity": 0.5},
        {"crowding": {"studio": 4, "classic": 9}},
        {"crowding": {"studio": 4}, "diversity": 0.3, "min_score": 0.0},
    ]
    for options in cases:
        if call == "recommend":
            options |= {"formula": "score + retrieval_score"}
        body = {"context": {"user": 4}, "pool_size": 60, "explain": True, **options}
        whole = responds(service, call, k=60, offset=0, **body)["ids"]
        ids = list[int]()
        for offset in range(0, 56, 7):
            page = responds(service, call, k=7, offset=offset, **body)
            ids += page["ids"]
            shortfall = page["explanation"].get("shortfall", "")
            assert ("no more neighbors" in shortfall) == (len(page["ids"]) < 7)
        assert len({*ids}) == len(ids) > 14
        assert ids == whole[:56], options
