"""Lists of the bundle's candidates and of what changed since: parts of which only those candidates
are collected that can be in a list give the same one as exact searches of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import (
    add,
    candidate,
    change,
    deletion,
    deny,
    ids_of,
    nearest,
    random_vectors,
)
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]

SIZE = 300
BUNDLED = range(1000, 1000 + 7 * SIZE, 7)
ADDED = range(6000, 6040)
PARAMETERS = {"num_leaves": 4, "leaves_to_search": 4, "dimensions_per_block": 2}


def vectors_like(vectors: Any, count: int, seed: int) -> Any:
    """Returns further vectors of which some are among the nearest of any query."""
    random = np.random.default_rng(seed)
    chosen = vectors[random.integers(0, len(vectors), count)]
    return (chosen * random.uniform(0.7, 1.3, (count, 1))).astype(np.float32)


def test_lists_are_those_of_exact_searches_of_all_parts(write: Write, serve: Serve) -> None:
    # The search of the tree scores all candidates, so that it finds what an exact one does.
    parameters = {**PARAMETERS, "reorder": 2 * SIZE}
    small = write(index_kind="tree_ah", parameters=parameters, size=SIZE)
    service = serve()
    change(service, "candidates/upsert", *[candidate(key) for key in BUNDLED[:20]])
    add(service, vectors_like(small.vectors, len(ADDED), seed=2), ADDED.start)
    change(service, "candidates/upsert", *[candidate(key) for key in ADDED[:5]])
    change(service, "candidates/delete", *deletion([BUNDLED[30], ADDED[10]]))
    deny(service, BUNDLED[12], ADDED[12])

    returned = set[int]()
    for seed in range(8):
        vectors = random_vectors(3, seed=100 + seed)
        listed = [ids for ids, _ in nearest(service, vectors, k=10)]
        returned.update(*listed)
        cases: list[dict[str, Any]] = [
            {},
            {"k": 1},
            {"k": 2 * SIZE},
            {"exact": True},
            {"exclude_ids": listed[0][::3]},
        ]
        for case in cases:
            options = {"k": 10, **case}
            reference = {**options, "exact": True, "explain": True}
            expected = nearest(service, vectors, **reference)
            assert nearest(service, vectors, **options) == expected, case
    for part in (BUNDLED, ADDED):
        assert returned & set(part)
    gone = {ADDED[10], BUNDLED[30]}
    denied = {part[12] for part in (BUNDLED, ADDED)}
    assert not ids_of(service) & (gone | denied)
