"""Recommendations from several sources by a router, while a shard is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S
from tests.e2e.valve import Valve
from tests.units.service.shards.cluster import Cluster, response

Write = Callable[..., SmallBundle]


TABLES_STAY: dict[str, Any] = {"shard_min_bytes": 1 << 40}
"""Shards hold partitions of the index alone."""


@pytest.fixture
def small(write: Write) -> SmallBundle:
    """Writes a bundle whose index has four partitions."""
    return write(partitions=4)


def test_index_whose_shard_is_lost_degrades_the_response_and_other_sources_are_served(
    cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2", **TABLES_STAY)
    router = cluster.start_router(**TABLES_STAY)
    movies = small.ids.tolist()
    index = {"index": "movies", "pool_size": 6}
    here: dict[str, Any] = {"k": 3, "context": {"user": 1}, "diversity": 0.3}
    here["sources"] = [index, {"name": "first", "ids": movies[:5]}]
    with httpx.Client(base_url=router.http, timeout=WAIT_S, verify=False) as client:
        code, content = response(client, "recommend", here)
        assert (code, content["degraded"]) == (200, False)
        assert "movies" in content["sources"]
        cluster.drop("2/2")

        code, content = response(client, "recommend", here)
        assert code == 200, content
        reason = content["degraded_reason"]
        assert reason.startswith("source 'movies' is left out: ")
        assert "shard 2/2" in reason
        assert "retrieval score" not in reason
        assert content["sources"] == ["first"] * 3
        assert any(content["retrieval_scores"]), "the vectors of these candidates are not lost"

        behind = {**here, "sources": [index, {"name": "last", "ids": movies[-5:]}]}
        code, content = response(client, "recommend", behind)
        assert code == 200, content
        assert content["sources"] == ["last"] * 3
        assert content["retrieval_scores"] == [0, 0, 0]
        reason = content["degraded_reason"]
        assert reason.startswith("source 'movies' is left out: ")
        assert "5 of 5 candidates have the retrieval score 0: " in reason
        assert "the list is not made diverse" in reason

        popular = {"name": "popular", "ids": movies[:9], "fallback": True}
        code, content = response(client, "recommend", {**here, "sources": [index, popular]})
        assert (code, content["sources"]) == (200, ["popular"] * 3)

        code, content = response(client, "recommend", {**here, "sources": [index]})
        assert code == 503, content
        assert "shard 2/2" in content["error"]["message"]
    labels = {"model": "movies", "outcome": "failed"}
    assert router.value("rowcast_sources_left_out_total", **labels) == 3


def test_shard_that_does_not_respond_leaves_time_for_the_other_sources(
    cluster: Cluster, small: SmallBundle
) -> None:
    cluster.add("1/2", "2/2", **TABLES_STAY)
    first, second = cluster.addresses
    body: dict[str, Any] = {"k": 3, "context": {"user": 1}}
    listed = {"name": "listed", "ids": small.ids.tolist()[:5]}
    body["sources"] = [{"index": "movies", "pool_size": 6}, listed]
    with Valve(int(second.rpartition(":")[2])) as valve:
        valve.open()
        relayed = valve.url.removeprefix("http://")
        router = cluster.start_router(shard_addresses=(first, relayed), **TABLES_STAY)
        headers = {"x-request-timeout-ms": "10000"}
        with httpx.Client(
            base_url=router.http, timeout=WAIT_S, headers=headers, verify=False
        ) as client:
            code, content = response(client, "recommend", body)
            assert (code, content["degraded"]) == (200, False), content
            valve.stop_at(sent=1)
            code, content = response(client, "recommend", body)
    # If the search could wait until the deadline, nothing could be ranked after it.
    assert code == 200, content
    assert content["degraded_reason"].startswith("source 'movies' is left out: ")
    assert content["sources"] == ["listed"] * 3
    labels = {"model": "movies", "outcome": "late"}
    assert router.value("rowcast_sources_left_out_total", **labels) == 1
