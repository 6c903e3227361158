"""Lists of the bundle's candidates, of absorbed ones and of what changed since: parts of which only
those candidates are collected that can be in a list give the same one as exact searches of all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import until
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.service.changes.making import (
    absorb,
    add,
    candidate,
    change,
    deletion,
    deny,
    ids_of,
    indexed,
    nearest,
    random_vectors,
    status,
    until_applied,
)
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]

SIZE = 300
BUNDLED = range(1000, 1000 + 7 * SIZE, 7)
ABSORBED = range(5000, 5080)
ADDED = range(6000, 6040)
PARAMETERS = {"num_leaves": 4, "leaves_to_search": 4, "dimensions_per_block": 2}
RECALL = 0.95


def vectors_like(vectors: Any, count: int, seed: int) -> Any:
    """Returns further vectors of which some are among the nearest of any query."""
    random = np.random.default_rng(seed)
    chosen = vectors[random.integers(0, len(vectors), count)]
    return (chosen * random.uniform(0.7, 1.3, (count, 1))).astype(np.float32)


@pytest.mark.parametrize(
    "tree_min",
    [
        pytest.param(2048, id="exact segment"),
        pytest.param(96, id="segment with a tree of which few are left"),
        pytest.param(64, id="segment with a tree"),
    ],
)
def test_lists_are_those_of_exact_searches_of_all_parts(
    tree_min: int, write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.changes.segments._TREE_MIN", tree_min)
    # The searches by trees score all candidates, so that they find what exact ones do.
    parameters = {**PARAMETERS, "reorder": 2 * SIZE}
    small = write(index_kind="tree_ah", parameters=parameters, size=SIZE)
    service = serve(absorb_changed_at=100)
    add(service, vectors_like(small.vectors, len(ABSORBED), seed=1), ABSORBED.start)
    change(service, "candidates/upsert", *[candidate(key) for key in BUNDLED[:20]])
    until(lambda: indexed(service) == 100)
    add(service, vectors_like(small.vectors, len(ADDED), seed=2), ADDED.start)
    change(service, "candidates/upsert", *[candidate(key) for key in (*ABSORBED[:5], *ADDED[:5])])
    change(service, "candidates/delete", *deletion([BUNDLED[30], ABSORBED[10], ADDED[10]]))
    deny(service, BUNDLED[12], ABSORBED[12], ADDED[12])

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
    for part in (BUNDLED, ABSORBED, ADDED):
        assert returned & set(part)
    gone = {*[part[10] for part in (ABSORBED, ADDED)], BUNDLED[30]}
    denied = {part[12] for part in (BUNDLED, ABSORBED, ADDED)}
    assert not ids_of(service) & (gone | denied)


def test_lists_of_a_tree_over_absorbed_candidates_reach_the_recall_and_k(
    write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.changes.segments._TREE_MIN", 100)
    parameters = {**PARAMETERS, "leaves_to_search": 2, "reorder": 40}
    write(index_kind="tree_ah", parameters=parameters, size=200)
    service = serve(absorb_changed_at=1500)
    add(service, random_vectors(1500))
    until(lambda: indexed(service) == 1500)
    change(service, "candidates/delete", *deletion(range(5000, 5700)))
    queries = random_vectors(50, seed=7)
    exact = nearest(service, queries, k=10, exact=True)
    neighbors = nearest(service, queries, k=10)
    pairs = zip(neighbors, exact, strict=True)
    hits = sum(len({*ids} & {*exact_ids}) for (ids, _), (exact_ids, _) in pairs)
    assert hits >= RECALL * 10 * len(queries)
    for k in (600, 1000):
        sizes = [len(ids) for ids, _ in nearest(service, queries, k=k)]
        assert sizes == [min(k, 1000)] * len(queries)


def test_version_that_holds_all_changes_stays_unchanged_by_segments_of_another(
    write: Write, serve: Serve, small_towers: Path, tmp_path: Path
) -> None:
    write()
    change(serve(changes_dir=tmp_path / "host"), "candidates/upsert", candidate(5000))
    newer = write_small_bundle(tmp_path / "newer", small_towers, version=2)
    rewrite(newer.directory, setting("changes_included", 1))
    with closing(RunningService(tmp_path / "newer", changes_dir=tmp_path / "host")) as service:
        older = serve(changes_dir=tmp_path / "host", absorb_changed_at=1)
        absorb(older)
        until_applied(older, service)
        assert status(service)["versions"][-1]["changed"] == {}
