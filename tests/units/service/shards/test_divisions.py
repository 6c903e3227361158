"""A router while the number of shards changes, or a version comes: the largest complete division
serves, and no response is of two versions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.running import RunningService
from tests.units.service.shards.cluster import Cluster, response

LOOKUP = {"feature": "user", "ids": list(range(50))}
RETRIEVAL = {"context": {"user": 3}, "k": 20, "crowding": {"studio": 2}}


def serving(router: RunningService) -> set[str]:
    """Returns the shards that the router reads from."""
    assert router.worker.shards is not None
    return {entry["shard"] for entry in router.worker.shards.status() if entry["serves"]}


@contextmanager
def requests(router: RunningService) -> Iterator[list[tuple[int, Any]]]:
    """Sends requests to the router until the `with` ends; yields the responses."""
    responses: list[tuple[int, Any]] = []
    done = threading.Event()

    def send() -> None:
        with httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False) as client:
            while not done.is_set():
                responses.append(response(client, "lookup", LOOKUP))
                responses.append(response(client, "retrieve", RETRIEVAL))

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send)
        try:
            yield responses
        finally:
            done.set()
            sending.result()


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_router_follows_a_change_of_the_number_of_shards_without_a_failed_request(
    before: int, after: int, cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    write(partitions=3)
    old = [f"{number}/{before}" for number in range(1, before + 1)]
    new = [f"{number}/{after}" for number in range(1, after + 1)]
    cluster.add(*old)
    router = cluster.start_router()
    assert serving(router) == set(old)
    with requests(router) as responses:
        until(lambda: len(responses) > 2)
        cluster.add(*new[:1])  # incomplete
        status = router.worker.shards
        assert status is not None
        until(lambda: new[0] in {entry["shard"] for entry in status.status()})
        assert serving(router) == set(old)
        cluster.add(*new[1:])
        until(lambda: {*old, *new} == {entry["shard"] for entry in status.status()})
        until(lambda: serving(router) == set(old if before > after else new))
        cluster.drop(*old)
        until(lambda: serving(router) == set(new))
        count = len(responses)
        until(lambda: len(responses) > count + 4)
    assert {code for code, _ in responses} == {200}
    assert all(body == responses[0][1] for _, body in responses[::2])
    assert all(body == responses[1][1] for _, body in responses[1::2])
    replicas = "rowcast_shard_replicas"
    assert router.value(replicas, shard=new[-1]) == 1
    assert router.value(replicas, shard=old[-1]) != 0, "a division that was dropped is not lost"


def test_new_router_serves_the_largest_complete_division_beside_a_stray_shard(
    cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    write(partitions=3)
    cluster.add("1/1", "1/2", "2/2", "3/5")
    router = cluster.start_router()
    assert serving(router) == {"1/2", "2/2"}
    with httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False) as client:
        assert response(client, "lookup", LOOKUP)[0] == 200


def test_version_that_comes_under_load_is_served_whole_and_without_a_failed_request(
    cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    write(partitions=3)
    cluster.add("1/2", "2/2")
    router = cluster.start_router()
    with requests(router) as responses:
        until(lambda: len(responses) > 2)
        write(version=2, partitions=3)
        until(lambda: responses[-1][1].get("version") == 2)
    assert {code for code, _ in responses} == {200}
    for of_call in (responses[::2], responses[1::2]):
        bodies = {body["version"]: body for _, body in of_call}
        assert all(body == bodies[body["version"]] for _, body in of_call)


def test_topology_has_the_address_of_each_shard_and_what_it_holds(
    cluster: Cluster, write: Callable[..., SmallBundle]
) -> None:
    write(partitions=3)
    cluster.add("1/2", "2/2")
    topology = httpx.get(f"{cluster.start_router().admin}/v1/topology", verify=False).json()
    (process,) = topology["processes"]
    assert topology["role"] == "router"
    first, second = [
        next(shard for shard in process["shards"] if shard["address"] == address)
        for address in cluster.addresses
    ]
    assert (first["shard"], second["shard"]) == ("1/2", "2/2")
    assert first["holds"]["movies/1"]["tables.users"] == [0, 25]
    assert first["holds"]["movies/1"]["indexes.movies"] == [0, 28]
    assert second["holds"]["movies/1"]["tables.users"] == [25, 50]
