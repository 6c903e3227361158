"""Tables of dynamic keys take new keys while they are served, as if they had been exported with
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.units.service.changes.keyed import KEYS, MISSING, KeyedBundles
from tests.units.service.changes.making import candidate, change, nearest, operate, responds
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
NEW = {"user": [7, 2**40, 100_000, 3], "movie": [77, MISSING, 1000, 78]}
TABLES = {"user": "users", "movie": "movies"}


def responses(service: RunningService, movies: list[int]) -> list[Any]:
    """Returns the responses to calls that read users and movies."""
    users = [0, *NEW["user"], 11]
    lookups = [
        responds(service, "lookup", feature=feature, ids=[*keys, 1, 11])
        for feature, keys in NEW.items()
    ]
    contexts = [{"context": {"user": user}} for user in users]
    context = {"user": 7}
    return [
        *lookups,
        responds(service, "retrieve", requests=contexts, k=100, exact=True),
        responds(service, "retrieve", ids=movies, k=100),
        responds(service, "rank", context=context, candidate_ids=movies),
        responds(service, "recommend", context=context, k=20),
        nearest(service, np.eye(8), k=100),
    ]


def test_new_keys_are_read_as_those_of_a_rebuild(
    bundles: KeyedBundles, serve: Serve, small_towers: Path, tmp_path: Path
) -> None:
    small = bundles.write()
    service = serve()
    random = np.random.default_rng(5)
    movies = {9000: 77, 9001: 1000, MISSING: MISSING}
    candidates = [candidate(key, movie) for key, movie in movies.items()]
    change(service, "candidates/upsert", *candidates)
    keys = {name: [*stored.tolist()] for name, stored in KEYS.items()}
    tables = {name: [*small.tables[name]] for name in KEYS}
    for number in range(14):
        feature = ["user", "user", "movie", "movie"][number % 4]
        stored = keys[TABLES[feature]]
        rows = tables[TABLES[feature]]
        drawn = random.permutation(NEW[feature])[: random.integers(1, 5)].tolist()
        items = []
        for key in drawn:
            vector = random.standard_normal(8).astype(np.float32)
            items.append({"id": key, "vector": vector.tolist()})
            if key not in stored:
                stored.append(key)
                rows.append(vector)
            rows[stored.index(key)] = vector
        change(service, "rows/upsert", *items, feature=feature)

    rebuilt = KeyedBundles(tmp_path / "rebuilt", small_towers)
    rebuilt.write(
        keys={name: np.array(by_row) for name, by_row in keys.items()},
        tables={name: np.array(rows, np.float32) for name, rows in tables.items()},
    )
    expected = RunningService(rebuilt.root)
    try:
        change(expected, "candidates/upsert", *candidates)
        # The index of the bundle has the vector of a candidate whose row has changed.
        position = small.ids.tolist().index(1000)
        stored_features = {
            "movie": 1000,
            "genres": [*small.genres[position]],
            "year": float(small.years[position]),
        }
        attributes = {"title": small.titles[position]}
        item = {"id": 1000, "features": stored_features, "attributes": attributes}
        change(expected, "candidates/upsert", item)
        ids = [1000, 1035, *movies]
        changed = responses(service, ids)
        assert changed == responses(expected, ids)
        # A start applies changes that follow each other at once.
        assert changed == responses(serve(), ids)
    finally:
        expected.close()


def test_version_that_returns_after_a_compaction_is_served_without_its_new_keys(
    bundles: KeyedBundles, serve: Serve
) -> None:
    bundles.write()
    service = serve()
    ids = [7, 100_000, 11]
    expected = responds(service, "lookup", feature="user", ids=ids)
    for key in ids[:2]:
        change(service, "rows/upsert", {"id": key, "vector": [0.5] * 8}, feature="user")
    service.close()

    model = bundles.root / "movies"
    aside = (model / "1").rename(bundles.root / ".aside")
    bundles.write(version=2)
    service = serve()
    assert operate(service, "POST", "changes/compact", json={})["dropped"] == 1
    service.close()

    (model / "2").rename(bundles.root / ".newer")
    aside.rename(model / "1")
    assert responds(serve(), "lookup", feature="user", ids=ids) == expected
