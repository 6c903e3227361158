"""Routers and shards in processes of their own: what fails costs no request while one replica of
each shard remains.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.process import Process, until
from tests.e2e.services import (
    Launch,
    Write,
    client_of,
    count_of,
    is_ready,
    versions_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ALL = ("--shard-min-bytes", "1")
REPLICAS = 'rowcast_shard_replicas{shard="1/2"}'


def shard(launch: Launch, number: str, *options: str) -> Process:
    started: Process = launch("--shard", number, *ALL, *options)
    return started


def router(launch: Launch, shards: list[Process], *options: str) -> Process:
    addresses = [
        text
        for shard in shards
        for text in ("--shard-addresses", f"127.0.0.1:{shard.ports['grpc']}")
    ]
    started: Process = launch(*addresses, *ALL, *options)
    return started


def post(client: httpx.Client, call: str, body: dict[str, Any]) -> tuple[int, Any]:
    actual = client.post(f"/v1/models/movies:{call}", json=body)
    content = actual.json()
    content.get("error", {}).pop("request_id", None)
    return actual.status_code, content


def ready(service: Process) -> Process:
    with client_of(service) as client:
        until(lambda: is_ready(client))
    return service


def test_replicas_that_stall_end_or_load_cost_no_request(write: Write, launch: Launch) -> None:
    write(partitions=3)
    shards = [shard(launch, number) for number in ("1/2", "1/2", "2/2", "2/2")]
    service = ready(router(launch, shards, "--request-timeout-s", "20"))
    rank = {"context": {"user": 3, "recent": [1000, 1007]}, "candidate_ids": [1000, 1007, 1014]}
    lookup = {"feature": "user", "ids": [1, 2, 26, 27]}
    done = threading.Event()
    responses = list[tuple[int, Any]]()

    def rank_repeatedly() -> None:
        with client_of(service) as client:
            while not done.is_set():
                responses.append(post(client, "rank", rank))

    with ThreadPoolExecutor(2) as threads, client_of(service) as client:
        with shards[0].paused():  # costs at most half of the deadline
            for _ in range(4):
                assert post(client, "lookup", lookup)[0] == 200
            until(lambda: count_of(service, REPLICAS) == 1)
            assert [post(client, "lookup", lookup)[0] for _ in range(100)] == [200] * 100
        until(lambda: count_of(service, REPLICAS) == 2)
        first = post(client, "rank", rank)
        calls = [threads.submit(rank_repeatedly) for _ in range(2)]
        write(version=2, partitions=3)
        until(lambda: bool(responses) and responses[-1][1].get("version") == 2)
        for each in (shards[0], shards[3]):
            each.kill()
        before = len(responses)
        until(lambda: len(responses) > before + 50)
        done.set()
        for call in calls:
            call.result()
        second = post(client, "rank", rank)
        assert (first[1]["version"], second[1]["version"]) == (1, 2)
        assert all(each in (first, second) for each in responses), "rows of two versions, or none"
        assert versions_of(service) == {2}


def test_hung_shard_delays_only_requests_that_need_it(write: Write, launch: Launch) -> None:
    tables = write(users=True).manifest.tables
    size = {name: 4 * tables[name].rows * tables[name].dim for name in ("users", "cities")}
    assert size["users"] > size["cities"]
    only = ("--shard-min-bytes", str(size["users"]))
    one = launch("--shard", "1/1", *only)
    address = f"127.0.0.1:{one.ports['grpc']}"
    service = ready(launch("--shard-addresses", address, *only))
    on_shard = {"feature": "user", "ids": [1, 49]}
    here = {"feature": "city", "ids": [1, 2]}

    def look_up_on_shard(_: int) -> int:
        with client_of(service) as client:
            return post(client, "lookup", on_shard)[0]

    hanging = 16
    with client_of(service) as client, ThreadPoolExecutor(hanging) as threads:
        assert post(client, "lookup", on_shard)[0] == 200
        expected = post(client, "lookup", here)
        assert expected[0] == 200, expected
        with one.paused():
            waiting = threads.map(look_up_on_shard, range(hanging))
            until(lambda: count_of(service, "rowcast_inflight_requests") == hanging)
            actual = [post(client, "lookup", here) for _ in range(8)]
            still_waiting = count_of(service, "rowcast_inflight_requests")
        assert actual == [expected] * 8
        assert still_waiting == hanging
        assert list(waiting) == [200] * hanging
