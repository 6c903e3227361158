"""Tables of dynamic keys that shards hold take new keys on their routers, as on one process that
holds everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.changes import absorption, follower, row_files
from service.engine.calls import LookupRequest
from service.errors import NotReady, ServiceError
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.random_cases import seeds
from tests.units.service.changes.keyed import (
    MISSING,
    USER_KEYS,
    KeyedBundles,
    keyed_features,
    looked_up,
    responses,
    set_rows,
)
from tests.units.service.changes.making import TARGET, absorb, candidate, change
from tests.units.service.running import RunningService, column
from tests.units.service.shards.cluster import Cluster

Serve = Callable[..., RunningService]

CHANGES = 45
KEY_POOLS = {
    "user": [0, 3, 6, 7, 8, 10, 11, 100_000, 2**40, 2**63 - 1],
    "movie": [1, 1000, 1007, MISSING, 77, 78, 2**33],
}
"""Keys that the tables of users and movies have, and others."""
LASTING = [9000, 9001, MISSING]
"""Candidates that requests name, so that they are not deleted."""
LAST_MOVIE = 1000 + 7 * 39


class RandomChanges:
    """Draws changes of rows by keys, and of candidates that have some of these keys."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def make(self, service: RunningService) -> None:
        kind = int(self._random.integers(0, 6))
        ids = self._random.choice([1000, 1014, 1021, 9002, *LASTING], 2, replace=False).tolist()
        if kind == 0:
            keys = self._random.choice(KEY_POOLS["movie"], len(ids)).tolist()
            items = [candidate(key, movie) for key, movie in zip(ids, keys, strict=True)]
            change(service, "candidates/upsert", *items)
        elif kind == 1:
            items = [{"id": key, "attributes": {"year": 2031}} for key in ids]
            change(service, "candidates/attributes", *items)
        elif kind == 2:
            deleted = [{"id": key} for key in ids if key not in {1000, *LASTING}]
            if deleted:
                change(service, "candidates/delete", *deleted)
        else:
            feature = ["user", "movie"][int(self._random.integers(0, 2))]
            pool = KEY_POOLS[feature]
            count = int(self._random.integers(1, 5))
            keys = self._random.choice(pool, count, replace=False).tolist()
            set_rows(service, feature, {key: self._vector() for key in keys})

    def _vector(self) -> NDArray[np.float32]:
        return self._random.standard_normal(8).astype(np.float32)


def start_cluster(cluster: Cluster, bundles: KeyedBundles, **options: Any) -> SmallBundle:
    """Starts two shards of a bundle of dynamic keys."""
    small = bundles.write(partitions=4, **options)
    cluster.add("1/2", "2/2")
    return small


def have_applied(services: list[RunningService], count: int) -> bool:
    return all(service.current().changes == count for service in services)


def rows_of(service: RunningService, feature: str) -> list[int]:
    """Returns the row of each key of a pool."""
    keys = KEY_POOLS[feature]
    rows, _ = service.current().reader.rows(feature, {feature: column(*keys)}, len(keys))
    numbers: list[int] = rows.tolist()
    return numbers


def changed_counts(service: RunningService) -> dict[str, int]:
    """Returns how many rows and candidates are changed, as `ctl changes status` shows it."""
    (version,) = service.worker.changes.status("movies")["versions"]
    counts: dict[str, int] = version["changed"]
    return counts


def test_a_router_gives_new_keys_the_rows_that_one_process_gives_them(
    cluster: Cluster,
    bundles: KeyedBundles,
    serve: Serve,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)
    monkeypatch.setattr(row_files, "MEMORY_BYTES", 0)  # some rows of each table are in a file
    # The test moves them there: only one thread of a service may do so at a time.
    monkeypatch.setattr(follower, "_ABSORB_S", 3600.0)
    small = start_cluster(cluster, bundles)
    router = cluster.start_router()
    alone = serve()
    services = [router, alone]
    change(router, "candidates/upsert", *[candidate(key, MISSING) for key in LASTING])
    until(lambda: have_applied(services, 1))
    before = responses(alone, small, LASTING)
    assert responses(router, small, LASTING) == before

    (seed,) = seeds(request, 1, 46)[:1]
    changes = RandomChanges(seed)
    for number in range(CHANGES):
        changes.make(services[number % 2])  # both write the same log
        until(lambda: have_applied(services, router.worker.changes.status("movies")["sequence"]))
        if number == CHANGES // 2:
            absorb(router)
            for service in services:
                service.worker.changes.absorb_rows()
            (version,) = router.worker.changes.status("movies")["versions"]
            assert min(version["rows"][table]["file"] for table in ("users", "movies")) > 0
        if number % 15 == 14:
            assert responses(router, small, LASTING) == responses(alone, small, LASTING)

    restarted = cluster.start_router()
    expected = responses(alone, small, LASTING)
    assert expected != before
    for service in (router, restarted):
        assert responses(service, small, LASTING) == expected
        for feature in KEY_POOLS:
            assert rows_of(service, feature) == rows_of(alone, feature)
    for table in ("users", "movies"):
        counts = [
            (changed[f"table {table}"], changed[f"new rows of table {table}"])
            for changed in map(changed_counts, [*services, restarted])
        ]
        assert len(set(counts)) == 1
        assert counts[0][1] > 1


def test_new_keys_are_served_without_a_call_of_the_shards(
    cluster: Cluster, bundles: KeyedBundles
) -> None:
    start_cluster(cluster, bundles)
    router = cluster.start_router()

    def call_count() -> float:
        return router.value("rowcast_shard_seconds_count")

    looked_up(router, 3, 144)
    before = call_count()
    looked_up(router, 3, 144)
    calls_of_lookup = call_count() - before
    assert calls_of_lookup == 2, "the rows are on both shards"

    set_rows(router, "user", {7: np.full(8, 7), 8: np.full(8, 8)})
    before = call_count()
    assert looked_up(router, 7, 8) == ([True, True], [[7.0] * 8, [8.0] * 8])
    assert call_count() == before
    looked_up(router, 3, 7, 144, 8)
    assert call_count() == before + calls_of_lookup


def test_a_new_key_that_needs_a_lost_shard_is_rejected_and_another_is_served(
    cluster: Cluster, bundles: KeyedBundles
) -> None:
    start_cluster(cluster, bundles)
    router = cluster.start_router()
    change(router, "candidates/upsert", candidate(9000, movie=LAST_MOVIE + 1))
    cluster.drop("2/2")

    set_rows(router, "user", {7: np.full(8, 7)})
    assert looked_up(router, 7) == ([True], [[7.0] * 8])
    with pytest.raises(ServiceError):
        looked_up(router, int(USER_KEYS[-1]))  # its row is on 2/2

    # The candidate of this key is embedded anew, and its other vectors are on 1/2 and here.
    set_rows(router, "movie", {LAST_MOVIE + 1: np.ones(8)})
    with pytest.raises(NotReady, match="2/2"):
        set_rows(router, "movie", {LAST_MOVIE: np.ones(8), 77: np.ones(8)})
    result = router.execute(LookupRequest(TARGET, "movie", column(77)), "lookup")
    assert not result.found.any(), "of the rejected change, no key has a row"
    assert router.current().changes == 3

    shards = router.worker.shards
    assert shards is not None
    cluster.add("2/2")
    until(lambda: not shards.problem)
    set_rows(router, "movie", {LAST_MOVIE: np.ones(8), 77: np.full(8, 2)})
    result = router.execute(LookupRequest(TARGET, "movie", column(77)), "lookup")
    assert result.vectors.tolist() == [[2.0] * 8]


def test_new_keys_of_the_log_wait_for_lost_shards(
    cluster: Cluster, bundles: KeyedBundles, serve: Serve
) -> None:
    small = start_cluster(cluster, bundles)
    router = cluster.start_router()
    alone = serve()
    cluster.drop("2/2")
    set_rows(alone, "movie", {77: np.ones(8), LAST_MOVIE: np.ones(8)})
    set_rows(alone, "user", {8: np.full(8, 8), 7: np.full(8, 7)})
    until(lambda: "waits for shards" in router.worker.changes.status("movies")["problem"])
    assert looked_up(router, 7)[0] == [False], "the state before is served, and no half of one"

    cluster.add("2/2")
    until(lambda: have_applied([router], 2))
    for feature in KEY_POOLS:
        assert rows_of(router, feature) == rows_of(alone, feature)
    stored = [1000, 1007]
    assert responses(router, small, stored) == responses(alone, small, stored)


def test_followers_that_hold_all_and_followers_that_are_routers_have_the_same_keys(
    cluster: Cluster,
    bundles: KeyedBundles,
    serve: Serve,
    hosted: Callable[..., dict[str, Any]],
) -> None:
    small = start_cluster(cluster, bundles)
    writer = cluster.start_router(**hosted("writer"))
    services = [
        writer,
        serve(**hosted("alone", writer.http)),
        cluster.start_router(**hosted("router", writer.http)),
    ]
    change(writer, "candidates/upsert", candidate(9000, movie=77))
    for number in range(3):
        vector = np.full(8, number, np.float32)
        set_rows(writer, "user", {2**40: vector, 7 + number: vector})
        set_rows(writer, "movie", {77 + number: vector, MISSING: vector})
    until(lambda: have_applied(services, 7))
    stored = [1000, 9000]
    expected = responses(writer, small, stored)
    for service in services:
        assert responses(service, small, stored) == expected
        assert looked_up(service, 2**40, 7, 8, 9)[0] == [True] * 4
        for feature in KEY_POOLS:
            assert rows_of(service, feature) == rows_of(writer, feature)


VECTOR = [1.0] * 8
REJECTED: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"feature": "user"}, [{"id": "a", "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": 2**63, "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": 1.5, "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": -5, "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": 999, "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": 7, "vector": VECTOR}, {"id": 7, "vector": VECTOR}]),
    ({"feature": "user"}, [{"id": key, "vector": VECTOR} for key in (7, 8, 9, 10)]),
    ({"feature": "user"}, [{"id": 7, "vector": [float("nan"), *VECTOR[1:]]}]),
    ({"feature": "user"}, [{"id": 7, "vector": VECTOR[1:]}]),
    ({"feature": "user"}, [{"id": 7}]),
    ({"feature": "history"}, [{"id": 5, "vector": VECTOR}]),
    ({"table": "users"}, [{"id": 50, "vector": VECTOR}]),
]
"""What names the table, and the items."""


def test_keys_that_one_process_rejects_are_rejected_with_the_same_errors(
    cluster: Cluster, bundles: KeyedBundles, serve: Serve
) -> None:
    start_cluster(cluster, bundles, features=keyed_features(padding=999))
    limits = {"max_changed_rows": 3}
    services = [cluster.start_router(**limits), serve(**limits)]
    messages = []
    for target, items in REJECTED:
        errors = []
        for service in services:
            with pytest.raises(ServiceError) as caught:
                change(service, "rows/upsert", *items, **target)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
        messages.append(errors[0][1])
    assert len(set(messages)) == len(REJECTED), "each is rejected for a reason of its own"
    assert have_applied(services, 0)
