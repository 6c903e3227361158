"""What a router responds while no replica of a shard can be called."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rowcast_client import Client

from bundle.changes.file import ChangesFile
from bundle.changes.states import WHOLE
from bundle.format.manifest import dump
from bundle.format.paths import MANIFEST
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.changes.keyed import KeyedBundles
from tests.units.service.changes.making import (
    Rejected,
    candidate,
    change,
    file_of,
    ids_of,
    nearest,
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


def test_responses_say_what_they_cover_and_those_below_the_minimum_are_rejected(
    cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2")
    minima = (0.5, 0.6, 0.7)
    routers = {
        minimum: cluster.start_router(shard_min_coverage=minimum, shard_min_searched=minimum)
        for minimum in minima
    }
    size = len(small.ids)
    lookup = {"feature": "user", "ids": IDS}
    retrieval = {"vectors": [VECTOR], "k": size, "crowding": {"studio": size}}
    with ExitStack() as opened:
        clients = {
            minimum: opened.enter_context(
                httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False)
            )
            for minimum, router in routers.items()
        }
        code, rows = response(clients[0.5], "lookup", lookup)
        assert (code, rows["found"]) == (200, [True, True, True, True, False])
        code, whole = response(clients[0.5], "retrieve", retrieval)
        assert (code, whole["searched"]) == (200, size)
        assert not {"lost", "coverage"} & {*rows, *whole}
        cluster.drop("2/2")
        for minimum, client in clients.items():
            code, content = response(client, "lookup", lookup)
            assert code == (503 if minimum > 0.6 else 200)
            # The unknown row is one of those that were read.
            words = "60%" if minimum > 0.6 else '"coverage": 0.6'
            assert words in json.dumps(content)
            # No row of the lost shard is needed.
            assert response(client, "lookup", {"feature": "user", "ids": [1]})[0] == 200
            code, content = response(client, "retrieve", retrieval)
            assert code == (503 if minimum > 0.5 else 200)
            words = "shard 2/2" if minimum > 0.5 else '"coverage": 0.5'
            assert words in json.dumps(content)
        code, content = response(clients[0.5], "lookup", lookup)
        assert content["found"] == [True, True, False, False, False]
        assert content["lost"] == [False, False, True, True, False]
        assert content["vectors"][:2] == rows["vectors"][:2]
        code, content = response(clients[0.5], "retrieve", retrieval)
    here = {*small.ids[: size // 2].tolist()}
    expected = [pair for pair in zip(whole["ids"], whole["scores"], strict=True) if pair[0] in here]
    assert [*zip(content["ids"], content["scores"], strict=True)] == expected
    assert content["searched"] == size // 2
    router = routers[0.5]
    assert router.value("rowcast_partial_searches_total") == 2
    for url in (router.http, f"grpc://{router.grpc}"):
        with Client(url, timeout_s=WAIT_S) as client_of_rowcast:
            looked_up = client_of_rowcast.lookup("user", IDS)
        assert looked_up.lost is not None
        assert looked_up.lost.tolist() == [False, False, True, True, False]
        assert looked_up.coverage == pytest.approx(0.6)


def test_router_is_ready_without_a_shard_unless_it_requires_all(
    cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2")
    protocols = ("open-inference",)
    strict, lenient = [
        cluster.start_router(ready_requires_shards=required, protocols=protocols)
        for required in (True, False)
    ]

    def is_ready(router: RunningService) -> bool:
        with grpc.insecure_channel(router.grpc) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            status = check(health_pb2.HealthCheckRequest(), wait_for_ready=True).status
        ready = {status == health_pb2.HealthCheckResponse.SERVING}
        ready.add(router.value("rowcast_ready") == 1)
        for page in ("/readyz", "/v2/health/ready"):
            ready.add(
                httpx.get(router.http + page, timeout=WAIT_S, verify=False).status_code == 200
            )
        return ready == {True}

    until(lambda: is_ready(strict) and is_ready(lenient))
    cluster.drop("2/2")
    until(lambda: not is_ready(strict))
    until(lambda: lenient.value("rowcast_shard_replicas", shard="2/2") == 0)
    assert is_ready(lenient)
    cluster.add("2/2")
    until(lambda: is_ready(strict))


def test_vectors_of_lost_candidates_are_not_made_up(cluster: Cluster, small: SmallBundle) -> None:
    router = start_and_lose(cluster, shard_min_searched=0.1)
    lost = int(small.ids[-1])
    with httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False) as client:
        assert response(client, "retrieve", {"ids": [lost], "k": 3})[0] == 503
        code, content = response(client, "rank", {"context": {"user": 1}, "candidate_ids": [lost]})
        assert (code, content["error"]["code"]) == (503, "NOT_READY")
        assert "feature 'movie': the row of id" in content["error"]["message"]
        held_query = {"ids": [int(small.ids[0])], "k": 3, "diversity": 0.5}
        code, content = response(client, "retrieve", held_query)
    assert (code, content["coverage"]) == (200, 0.5)
    assert np.isin(content["ids"], small.ids[: len(small.ids) // 2]).all()


def test_change_that_needs_a_lost_shard_is_rejected_and_others_are_made(
    cluster: Cluster,
    bundles: KeyedBundles,
    serve: Callable[..., RunningService],
    tmp_path: Path,
) -> None:
    small = bundles.write(partitions=4)
    last = int(small.ids[-1])  # its row and its vector are on the second shard
    router = start_and_lose(cluster, changes_dir=tmp_path / "own")
    attributes = {"id": last, "attributes": {"year": 2031}}
    rejected = [("attributes", attributes), ("upsert", candidate(5000, movie=last))]
    for action, item in rejected:
        with pytest.raises(Rejected, match=r"NOT_READY: .*2/2"):
            change(router, f"candidates/{action}", item)
    first = {"id": int(small.ids[0]), "attributes": {"year": 2031}}
    assert change(router, "candidates/attributes", first)["changed"] == 1

    # What another process has made waits for the shard, and no half of it is served.
    cluster.add("2/2")
    shared = {"changes_dir": tmp_path / "shared"}
    alone = serve(**shared)
    change(alone, "candidates/delete", {"id": 1007})
    router = start_and_lose(cluster, **shared)
    change(alone, "candidates/attributes", attributes)
    change(alone, "candidates/upsert", candidate(5000, movie=last))
    until(lambda: "waits for shards" in status(router)["problem"])
    with pytest.raises(Rejected, match=r"misses earlier changes .*2/2.*no change was made"):
        change(router, "candidates/delete", {"id": 1000})
    cluster.add("2/2")
    until(lambda: not status(router)["problem"])
    until_applied(alone, router)
    lists = [
        nearest(service, small.vectors[:3], k=60, attributes=["year"])
        for service in (router, alone)
    ]
    assert lists[0] == lists[1]
    assert 5000 in ids_of(router)


def test_candidate_of_the_bundle_comes_back_once_its_shard_responds(
    cluster: Cluster, small: SmallBundle, serve: Callable[..., RunningService]
) -> None:
    last = int(small.ids[-1])  # its vector is on the second shard
    alone = serve()
    change(alone, "candidates/upsert", candidate(last))
    change(alone, "candidates/attributes", {"id": last, "attributes": {"year": 2031}})
    router = start_and_lose(cluster)
    until_applied(alone, router)
    alone.close()

    # An upsert that no version takes, since it lacks a feature.
    file = ChangesFile(file_of(router), "movies")
    (upserted,) = [state for state in file.everything()[1] if state.attribute == WHOLE]
    values = json.loads(upserted.content or "")
    del values["feature:year"]
    with file.writing(time.monotonic() + WAIT_S) as writer:
        writer.put([upserted._replace(content=json.dumps(values))])
    file.close()
    until(lambda: "waits for shards" in status(router)["problem"])
    cluster.add("2/2")
    until(lambda: not status(router)["problem"])
    (version,) = status(router)["versions"]
    assert version["dropped"] == {"feature year is missing": {"items": 1, "first_id": last}}
    assert nearest(router, VECTOR, k=60) == nearest(serve(), VECTOR, k=60)
