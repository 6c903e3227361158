"""What a router responds while no replica of a shard can be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rowcast_client import Client

from bundle.format.manifest import dump
from bundle.format.paths import MANIFEST
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.keyed import KeyedBundles
from tests.units.service.changes.making import (
    Rejected,
    change,
    nearest,
    responds,
    status,
    until_applied,
)
from tests.units.service.running import RunningService
from tests.units.service.shards.cluster import Cluster, response

IDS = [1, 2, 26, 27, 1_000_000]
"""Two of the rows of each half of the table, and an id that it does not have."""
VECTOR = [0.5] * 8


@pytest.fixture
def small(write: Callable[..., SmallBundle]) -> SmallBundle:
    """Writes a bundle whose lost rows count as unknown, and whose index has four partitions."""
    small = write(partitions=4)
    tables = {
        name: table.model_copy(update={"unavailable": "unknown"})
        for name, table in small.manifest.tables.items()
    }
    manifest = small.manifest.model_copy(update={"tables": tables})
    (small.directory / MANIFEST).write_bytes(dump(manifest))
    return small


def start_and_lose(cluster: Cluster, **settings: Any) -> RunningService:
    """Starts a router of two shards, and ends the second one."""
    cluster.add("1/2", "2/2")
    router = cluster.start_router(**settings)
    cluster.drop("2/2")
    return router


def test_lookup_tells_lost_ids_from_unknown_ones_over_both_transports(
    cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    body = {"feature": "user", "ids": IDS}
    with httpx.Client(base_url=router.http, timeout=60) as client:
        code, whole = response(client, "lookup", body)
        assert (code, whole["found"]) == (200, [True, True, True, True, False])
        assert not {"lost", "coverage"} & whole.keys()
        cluster.drop("2/2")
        code, content = response(client, "lookup", body)
    assert code == 200
    assert content["found"] == [True, True, False, False, False]
    assert content["lost"] == [False, False, True, True, False]
    assert content["coverage"] == 0.6  # the unknown row is one of those that were read
    assert content["vectors"][:2] == whole["vectors"][:2]
    for url in (router.http, f"grpc://{router.grpc}"):
        with Client(url) as client_of_rowcast:
            looked_up = client_of_rowcast.lookup("user", IDS)
        assert looked_up.lost is not None
        assert looked_up.lost.tolist() == content["lost"]
        assert looked_up.coverage == pytest.approx(0.6)


@pytest.mark.parametrize(("minimum", "status"), [(0.6, 200), (0.7, 503)])
def test_request_below_the_minimum_coverage_is_rejected(
    minimum: float, status: int, cluster: Cluster, small: SmallBundle
) -> None:
    router = start_and_lose(cluster, shard_min_coverage=minimum)
    with httpx.Client(base_url=router.http, timeout=60) as client:
        code, content = response(client, "lookup", {"feature": "user", "ids": IDS})
        assert code == status, content
        if status == 503:
            message = content["error"]["message"]
            assert ("60%" in message, "70%" in message) == (True, True)
        # no row of the lost shard is needed
        assert response(client, "lookup", {"feature": "user", "ids": [1]})[0] == 200


@pytest.mark.parametrize(("minimum", "status"), [(0.5, 200), (0.51, 503), (1.0, 503)])
def test_retrieval_over_the_shards_that_responded_is_a_choice_that_the_response_states(
    minimum: float, status: int, cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2")
    router = cluster.start_router(shard_min_searched=minimum)
    size = len(small.ids)
    body = {"vectors": [VECTOR], "k": size, "crowding": {"studio": size}}
    with httpx.Client(base_url=router.http, timeout=60) as client:
        code, whole = response(client, "retrieve", body)
        assert (code, whole["searched"]) == (200, size)
        assert "coverage" not in whole
        cluster.drop("2/2")
        code, content = response(client, "retrieve", body)
    assert code == status, content
    if status == 503:
        assert "shard 2/2 is not available" in content["error"]["message"]
        return
    here = set(small.ids[: size // 2].tolist())
    expected = [pair for pair in zip(whole["ids"], whole["scores"], strict=True) if pair[0] in here]
    assert [*zip(content["ids"], content["scores"], strict=True)] == expected
    assert (content["searched"], content["coverage"]) == (size // 2, 0.5)
    assert router.value("rowcast_partial_searches_total") == 1


@pytest.mark.parametrize("required", [False, True])
def test_router_is_ready_without_a_shard_unless_it_requires_all(
    required: bool, cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2")
    router = cluster.start_router(ready_requires_shards=required, protocols=("open-inference",))
    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(router.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def is_ready() -> bool:
            status = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True).status
            ready = {status == serving, router.value("rowcast_ready") == 1}
            for page in ("/readyz", "/v2/health/ready"):
                ready.add(httpx.get(router.http + page, timeout=20).status_code == 200)
            return ready == {True}

        until(is_ready)
        cluster.drop("2/2")
        until(lambda: router.value("rowcast_shard_replicas", shard="2/2") == 0)
        if not required:
            assert is_ready()
            return
        until(lambda: not is_ready())
        cluster.add("2/2")
        until(is_ready)


def test_vectors_of_lost_candidates_are_not_made_up(cluster: Cluster, small: SmallBundle) -> None:
    router = start_and_lose(cluster, shard_min_searched=0.1)
    lost = int(small.ids[-1])
    with httpx.Client(base_url=router.http, timeout=60) as client:
        assert response(client, "retrieve", {"ids": [lost], "k": 3})[0] == 503
        code, content = response(client, "rank", {"context": {"user": 1}, "candidate_ids": [lost]})
        assert (code, content["error"]["code"]) == (503, "NOT_READY")
        assert "feature 'movie': the row of id" in content["error"]["message"]
        held_query = {"ids": [int(small.ids[0])], "k": 3, "diversity": 0.5}
        code, content = response(client, "retrieve", held_query)
    assert (code, content["coverage"]) == (200, 0.5)
    assert np.isin(content["ids"], small.ids[: len(small.ids) // 2]).all()


def test_change_that_needs_a_lost_shard_is_rejected_and_others_are_made(
    cluster: Cluster, bundles: KeyedBundles, serve: Callable[..., RunningService]
) -> None:
    small = bundles.write(partitions=4)
    last = int(small.ids[-1])  # its row and its vector are on the second shard
    router = start_and_lose(cluster)
    alone = serve()
    attributes = {"id": last, "attributes": {"year": 2031}}
    rows = [{"id": key, "vector": [1.0] * 8} for key in (last, 77)]
    rejected: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("candidates/attributes", [attributes], {}),
        ("rows/upsert", rows, {"feature": "movie"}),
    ]
    for path, items, options in rejected:
        with pytest.raises(Rejected, match=r"NOT_READY: .*2/2"):
            change(router, path, *items, **options)
    assert responds(router, "lookup", feature="movie", ids=[77])["found"] == [False]
    change(router, "rows/upsert", {"id": 7, "vector": [1.0] * 8}, feature="user")
    assert responds(router, "lookup", feature="user", ids=[7])["vectors"] == [[1.0] * 8]

    # What another process has made waits for the shard, and no half of it is served.
    change(alone, "candidates/attributes", attributes)
    change(alone, "rows/upsert", *rows, feature="movie")
    until(lambda: "waits for shards" in status(router)["problem"])
    assert responds(router, "lookup", feature="movie", ids=[77])["found"] == [False]
    with pytest.raises(Rejected, match="NOT_READY"):
        change(router, "candidates/delete", {"id": 1000})
    cluster.add("2/2")
    until(lambda: not status(router)["problem"])
    until_applied(alone, router)
    lists = [
        nearest(service, small.vectors[:3], k=60, attributes=["year"])
        for service in (router, alone)
    ]
    assert lists[0] == lists[1]
    assert responds(router, "lookup", feature="movie", ids=[77])["found"] == [True]
