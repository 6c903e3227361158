"""Lists of the bundle's candidates, of segments and of what changed since: parts of which only
those candidates are collected that can be in a list give the same one as exact searches of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.engine.calls import IdLists
from service.versions.version import LiveIndex
from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import (
    absorb,
    add,
    candidate,
    change,
    deletion,
    listed,
    nearest,
    random_vectors,
)
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]

SIZE = 300
BUNDLED = range(1000, 1000 + 7 * SIZE, 7)
ABSORBED = range(5000, 5080)
ADDED = range(6000, 6040)
K = 10
PARAMETERS = {"num_leaves": 4, "leaves_to_search": 4, "dimensions_per_block": 2}


def ids_by_query(lists: Sequence[NDArray[np.int64]]) -> IdLists:
    """Returns a list of ids for each query."""
    return IdLists(np.concatenate(lists), offsets_of([ids.size for ids in lists]))


def vectors_like(vectors: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    """Returns further vectors of which some are among the nearest of any query."""
    random = np.random.default_rng(seed)
    chosen = vectors[random.integers(0, len(vectors), count)]
    return (chosen * random.uniform(0.7, 1.3, (count, 1))).astype(np.float32)


@pytest.fixture
def changed(write: Write, serve: Serve) -> RunningService:
    """A service of which some candidates of each part are replaced, deleted or denied. The searches
    by its trees score all candidates, so that they find what exact ones do.
    """
    parameters = {**PARAMETERS, "reorder": 2 * SIZE}
    small = write(index_kind="tree_ah", parameters=parameters, size=SIZE)
    service = serve()
    add(service, vectors_like(small.vectors, len(ABSORBED), seed=1), ABSORBED.start)
    change(service, "candidates/upsert", *[candidate(key) for key in BUNDLED[:20]])
    absorb(service)
    add(service, vectors_like(small.vectors, len(ADDED), seed=2), ADDED.start)
    change(service, "candidates/upsert", *[candidate(key) for key in (*ABSORBED[:5], *ADDED[:5])])
    ended = [BUNDLED[30], ABSORBED[10], ADDED[10]]
    change(service, "candidates/delete", *deletion(ended))
    with service.worker.versions.acquire("movies") as version:
        version.deny(tuple(str(part[12]) for part in (BUNDLED, ABSORBED, ADDED)))
    return service


@pytest.mark.parametrize("query_count", [1, 3])
@pytest.mark.parametrize(
    "tree_min",
    [
        pytest.param(2048, id="exact segment"),
        pytest.param(96, id="segment with a tree of which few are left"),
        pytest.param(64, id="segment with a tree"),
    ],
)
def test_lists_are_those_of_exact_searches_of_all_parts(
    query_count: int,
    tree_min: int,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr("service.changes.segments._TREE_MIN", tree_min)
    changed: RunningService = request.getfixturevalue("changed")
    (segment,) = changed.current().indexes["movies"].segments
    assert (segment.approximate is not None) == (tree_min == 64)
    assert isinstance(segment, LiveIndex) == (tree_min == 96)
    returned = set[int]()
    for seed in range(8):
        vectors: NDArray[np.float32] = random_vectors(query_count, segment.entry.dim, 100 + seed)
        neighbors = nearest(changed, vectors, k=K)
        returned.update(neighbors.ids.tolist())
        lists = np.split(neighbors.ids, neighbors.offsets[1:-1])
        cases: list[dict[str, Any]] = [
            {},
            {"k": 1},
            {"k": 2 * SIZE},
            {"exact": True},
            {"exclude_ids": IdLists(neighbors.ids[::3])},
            {"exclude_ids": ids_by_query([ids[number::2] for number, ids in enumerate(lists)])},
        ]
        for case in cases:
            options = {"k": K, **case}
            result = listed(changed, vectors, **options)
            reference = {**options, "exact": True, "explain": True}
            assert result == listed(changed, vectors, **reference), case
    for part in (BUNDLED, ABSORBED, ADDED):
        assert returned & set(part)
        assert part[12] not in returned
