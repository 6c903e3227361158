"""Changes on a router with shards: what it serves equals what one process serves with the same
changes, and shards that do not respond delay changes and lose none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.tables.id_values import distinct
from service.changes import absorption, segments
from service.engine.calls import Condition, Filter, IdLists, LookupRequest
from service.errors import NotReady, ServiceError
from tests.bundles.small import USERS, SmallBundle
from tests.e2e.process import until
from tests.random_cases import seeds
from tests.units.service.changes.making import TARGET, absorb, candidate, change, deletion, nearest
from tests.units.service.running import RunningService, column
from tests.units.service.shards.cluster import Cluster
from tests.units.service.shards.comparing import (
    GENRES,
    IDS,
    STUDIOS,
    RandomRequests,
    Services,
    differences,
    serving,
)

CHANGES = 60
REQUESTS = 150
ROUNDS = 3
NEW_IDS = list(range(100, 140))
TREE = {"num_leaves": 8, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 20}


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorption, "_PRELOAD_S", 0.0)


class RequestsOfChanged(RandomRequests):
    """Draws requests that name changed candidates more often than others."""

    def _ids(self, fewest: int, end: int) -> list[int]:
        ids = super()._ids(fewest, end)
        for position in range(0, len(ids), 2):
            ids[position] = self._pick(IDS[:50] + NEW_IDS)
        return ids


class RandomChanges:
    """Draws changes of all kinds."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def make(self, service: RunningService) -> None:
        """Makes a change; one that is rejected changes nothing."""
        kind = int(self._random.integers(0, 7))
        ids = distinct(self._random.choice(IDS[:50] + NEW_IDS, 4)).tolist()
        if kind == 0:
            change(service, "candidates/delete", *deletion(ids[:2]))
        elif kind == 1:
            items = [{"id": key, "attributes": self._attributes()} for key in ids]
            change(service, "candidates/attributes", *items)
        elif kind == 2:
            vector = self._vector()
            change(service, "rows/upsert", {"id": IDS[ids[0] % 50], **vector}, feature="movie")
        elif kind == 3:
            rows = distinct(self._random.integers(0, USERS, 5)).tolist()
            items = [{"id": row, **self._vector()} for row in rows]
            change(service, "rows/upsert", *items, table="users")
        elif kind == 4:
            context = {"user": ids[0] % USERS, "liked": {"ids": ids[:1], "weights": [2.0]}}
            features = {**context, "mood": [0.5, 0.25]}
            change(service, "contexts/upsert", {"id": ids[0], "features": features})
        else:
            change(service, "candidates/upsert", *map(self._candidate, ids))

    def _candidate(self, key: int) -> dict[str, Any]:
        movie = IDS[int(self._random.integers(0, len(IDS)))]
        features = {"movie": movie, "genres": ["drama"], "year": float(self._random.random())}
        return {"id": key, "features": features, "attributes": self._attributes()}

    def _attributes(self) -> dict[str, Any]:
        year = 1990 + int(self._random.integers(0, len(IDS)))
        genre = GENRES[int(self._random.integers(0, len(GENRES)))]
        studio = STUDIOS[int(self._random.integers(0, len(STUDIOS)))]
        return {"year": year, "genres": [genre], "studio": studio}

    def _vector(self) -> dict[str, Any]:
        return {"vector": self._random.normal(size=8).tolist()}


def are_at_one_state(services: Services) -> bool:
    sequences = {service.worker.changes.status("movies")["sequence"] for service in services}
    served = {service.current().changes for service in services}
    return len(sequences | served) == 1


def segment_sizes(service: RunningService) -> list[int]:
    segments = service.current().indexes["movies"].segments
    return [len(segment.vectors) for segment in segments]


def exact_lists(service: RunningService, small: SmallBundle) -> list[Any]:
    """Returns the ids and scores of all candidates, in the order of their distance from three."""
    neighbors = nearest(service, small.vectors[:3], k=60, exact=True)
    return [neighbors.ids.tolist(), neighbors.scores.tolist()]


@pytest.mark.slow
def test_a_router_serves_random_changes_as_one_process(
    small_towers: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (seed,) = seeds(request, 1, 45)[:1]
    changes = RandomChanges(seed)
    with serving(tmp_path, small_towers) as services:
        for number in range(ROUNDS):
            for position in range(CHANGES // ROUNDS):
                changes.make(services[position % 2])  # both write the same log
                until(lambda: are_at_one_state(services))
                if position == CHANGES // ROUNDS // 2:
                    absorb(services[number % 2])
                    until(lambda: are_at_one_state(services))
            assert segment_sizes(services[0]) == segment_sizes(services[1])
            assert segment_sizes(services[0])
            assert services[0].current().indexes["movies"].added is not None
            differing = differences(
                services,
                seed + number,
                REQUESTS,
                lambda received: received,
                RequestsOfChanged,
            )
            assert not differing, f"{len(differing)} of {REQUESTS} differ: {differing[0]}"
        assert services[0].current().changes > CHANGES / 2


def test_a_change_that_needs_a_lost_shard_is_rejected_and_others_are_made(
    cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    small = write(partitions=4)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    own_vector = {"vectors": {"movies": small.vectors[0].tolist()}}
    change(router, "candidates/upsert", candidate(5000, **own_vector))
    cluster.drop("2/2")

    last = {"id": int(small.ids[-1]), "attributes": {"year": 2031}}  # its vector is on 2/2
    with pytest.raises(NotReady, match=r"2/2.*"):
        change(router, "candidates/attributes", last)
    assert router.current().changes == 1
    change(router, "candidates/attributes", {"id": 5000, "attributes": {"year": 2031}})
    change(router, "rows/upsert", {"id": USERS - 1, "vector": [1.0] * 8}, table="users")
    changed = router.execute(LookupRequest(TARGET, "user", column(USERS - 1)), "lookup")
    assert changed.vectors.tolist() == [[1.0] * 8], "the row is served though its shard is lost"
    with pytest.raises(ServiceError):
        router.execute(LookupRequest(TARGET, "user", column(USERS - 2)), "lookup")


def test_a_router_applies_changes_of_the_log_once_lost_shards_return(
    cluster: Cluster, write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    small = write(partitions=4)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    alone = serve()

    def problem() -> str:
        text: str = router.worker.changes.status("movies")["problem"]
        return text

    cluster.drop("2/2")
    last = {"id": int(small.ids[-1]), "attributes": {"year": 2031}}  # its vector is on 2/2
    change(alone, "candidates/attributes", last)
    change(alone, "candidates/upsert", candidate(5000))
    until(lambda: "waits for shards" in problem())
    assert router.current().changes == 0, "the state before is served, and no half of one"
    with pytest.raises(NotReady, match="misses earlier changes"):
        change(router, "candidates/delete", {"id": 1000})

    cluster.add("2/2")
    until(lambda: router.current().changes == 2)
    assert problem() == ""
    assert exact_lists(router, small) == exact_lists(alone, small)


def test_a_router_searches_exactly_what_a_service_that_holds_all_has_absorbed(
    cluster: Cluster, write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    small = write(partitions=4)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    alone = serve()
    added = [candidate(key) for key in range(5000, 5020)]
    change(alone, "candidates/upsert", *added)
    absorb(alone)
    change(alone, "candidates/delete", {"id": 5003}, {"id": 1007})
    assert segment_sizes(alone) == [len(added)]

    until(lambda: router.current().changes == 3)
    restarted = cluster.start_router()
    assert restarted.current().changes == 3
    expected = exact_lists(alone, small)
    for service in (router, restarted):
        assert exact_lists(service, small) == expected
        assert service.value("rowcast_segments_unusable", model="movies") == 0


def test_a_restarted_router_has_all_changes_before_it_serves(
    cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    small = write(partitions=4)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    change(router, "candidates/upsert", candidate(5000), candidate(1000))
    change(router, "rows/upsert", {"id": 1007, "vector": [2.0] * 8}, feature="movie")
    change(router, "candidates/delete", {"id": 1014})

    restarted = cluster.start_router()
    assert restarted.current().changes == 3
    assert exact_lists(restarted, small) == exact_lists(router, small)


def listed(service: RunningService, vectors: Any, **options: Any) -> list[Any]:
    result = nearest(service, vectors, **options)
    explanations = [explanation._replace(search_ms=0.0) for explanation in result.explanations]
    return [result.ids.tolist(), result.scores.tolist(), result.offsets.tolist(), explanations]


def test_a_router_searches_a_tree_over_absorbed_candidates_as_one_process(
    cluster: Cluster,
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "_TREE_MIN", 100)
    small = write(size=200, partitions=4, index_kind="tree_ah", parameters=TREE)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    vectors = np.random.default_rng(0).standard_normal((1200, 8)).astype(np.float32)
    items = [
        candidate(5000 + number, vectors={"movies": vector.tolist()})
        for number, vector in enumerate(vectors)
    ]
    for start in range(0, 1000, 500):
        change(router, "candidates/upsert", *items[start : start + 500])
    change(router, "candidates/attributes", {"id": 1000, "attributes": {"year": 2031}})
    change(router, "candidates/delete", {"id": 1007}, {"id": 5003})
    absorb(router)
    (segment,) = router.current().indexes["movies"].segments
    assert segment.approximate is not None
    assert len(segment.vectors) == 1000
    change(router, "candidates/upsert", *items[1000:])
    change(router, "candidates/delete", *deletion(range(5000, 5100)))

    alone = serve()
    restarted = cluster.start_router()
    services = [alone, router, restarted]
    assert [segment_sizes(service) for service in services] == [[1000]] * 3
    queries = vectors[::100] + small.vectors[:12]
    calls: list[dict[str, Any]] = [
        {"k": 20},
        {"k": 20, "exact": True, "explain": True},
        {"k": 20, "recall": 0.5},
        {"k": 700},
        {"k": 20, "filter": Filter({"year": Condition(is_null=True)})},
        {"k": 20, "exclude_ids": IdLists(np.arange(5100, 5900))},
        {"k": 20, "crowding": {"year": 2}, "pool_size": 200},
    ]
    lists = [listed(restarted, queries, **options) for options in calls]
    assert [listed(router, queries, **options) for options in calls] == lists
    assert listed(alone, queries, **calls[1]) == lists[1]

    # Without candidates of the bundle, which shards search, both search the same vectors.
    change(router, "candidates/delete", *deletion(small.ids.tolist()))
    until(lambda: len({service.current().changes for service in services}) == 1)
    lists = [listed(alone, queries, **options) for options in calls]
    for service in (router, restarted):
        assert [listed(service, queries, **options) for options in calls] == lists
    assert lists[0][0] != lists[1][0], "the tree misses some"
