"""What a recommendation leaves out for want of time: diversity first, then a stage, a source, or
the ranking of the last candidates; the response says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

from service.engine.retrieval import pick
from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import Rejected, responds
from tests.units.service.engine.served import CountingTower, SlowTower, StepClock
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

HOUR_S = 3600
OVERDUE_S = 0.4
Body = dict[str, Any]
Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
USER: Body = {"context": {"user": 2}}
IDS = [1000 + 7 * position for position in range(6)]
INDEX: Body = {"index": "movies"}
TEN_USERS = [{"context": {"user": user}} for user in range(1, 11)]


class OverdueTower(CountingTower):
    """Runs another network after the deadline of the request."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        time.sleep(OVERDUE_S)
        return super().run(inputs)


def hurried(service: RunningService, timeout_s: float, **body: Any) -> Body:
    """The response to a recommendation with little time, by what the steps say that they take."""
    headers = {"x-request-timeout-ms": str(round(1000 * timeout_s))}
    return responds(service, "recommend", headers, **body)


def slow(service: RunningService, tower: str, clock: StepClock) -> SlowTower:
    """Slows a tower down, and lets the service know what it takes now."""
    network = SlowTower(service.current().towers[tower].parts[0].network, clock)
    service.with_network(tower, network)
    responds(service, "recommend", k=5, pool_size=10, **USER)
    return network


def degraded(service: RunningService) -> float:
    return service.value("rowcast_degraded_total", model="movies")


def test_diversity_is_left_out_first(
    write: Write, serve: Serve, clock: StepClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(size=200)
    service = serve(request_timeout_s=HOUR_S)
    quick = pick.pick_diverse

    def slow_diverse(*arguments: Any) -> list[int]:
        clock.add(2000)
        return quick(*arguments)

    monkeypatch.setattr(pick, "pick_diverse", slow_diverse)
    body: Body = {"k": 9, "pool_size": 100, **USER}
    plain = responds(service, "recommend", **body)["ids"]
    diverse = responds(service, "recommend", diversity=0.9, **body)
    assert (diverse["degraded"], diverse["ids"] == plain) == (False, False)
    late = hurried(service, 3500, diversity=0.9, **body)
    assert late["ids"] == plain
    assert "not made diverse" in late["degraded_reason"]
    assert degraded(service) == 1


def test_without_time_to_rank_the_order_is_that_of_the_retrieval_under_crowding(
    write: Write, serve: Serve, clock: StepClock
) -> None:
    write()
    service = serve(request_timeout_s=HOUR_S)
    network = slow(service, "ranking", clock)
    before = list(network.examples)
    body: Body = {"requests": TEN_USERS[:8], "k": 6, "pool_size": 40, "crowding": {"studio": 1}}
    late = hurried(service, 1500, **body)
    assert "0 of 320" in late["degraded_reason"]
    assert network.examples == before
    retrieved = responds(service, "retrieve", **body)
    for result, expected in zip(late["results"], retrieved["results"], strict=True):
        assert (result["ids"], result["scores"]) == (expected["ids"], expected["scores"])


def test_the_best_of_the_stage_are_ranked_and_the_others_keep_its_order(
    write: Write, serve: Serve, clock: StepClock
) -> None:
    small = write(keep=30)
    service = serve(request_timeout_s=HOUR_S)
    network = slow(service, "ranking", clock)
    late = hurried(service, 2000, k=30, pool_size=40, **USER)
    count = network.examples[-1]
    assert 0 < count < 20
    assert f"{count} of 30" in late["degraded_reason"]
    assert "stage 'quick'" in late["degraded_reason"]
    rated = responds(service, "rank", tower="quick", k=30, candidate_ids=small.ids.tolist(), **USER)
    assert {*late["ids"][:count]} == {*rated["ids"][:count]}
    assert late["ids"][count:] == rated["ids"][count:]
    assert late["scores"][count:] == rated["scores"][count:]
    assert degraded(service) == 1


def test_late_stage_is_left_out_and_the_first_of_the_retrieval_are_ranked(
    write: Write, serve: Serve, clock: StepClock
) -> None:
    write(keep=7)
    service = serve(request_timeout_s=HOUR_S)
    network = slow(service, "quick", clock)
    before = list(network.examples)
    late = hurried(service, 2000, k=5, pool_size=40, **USER)
    assert network.examples == before
    assert "stage 'quick' is left out" in late["degraded_reason"]
    retrieved = responds(service, "retrieve", k=7, **USER)["ids"]
    ranked = responds(service, "rank", tower="ranking", k=5, candidate_ids=retrieved, **USER)
    assert late["ids"] == ranked["ids"]


def test_late_source_is_left_out_and_a_request_without_another_is_past_its_deadline(
    write: Write, serve: Serve, clock: StepClock
) -> None:
    write(more_indexes=("opposite",))
    service = serve(request_timeout_s=HOUR_S)
    slow_query = SlowTower(service.current().towers["query"].parts[0].network, clock)
    service.with_network("query", slow_query)
    body: Body = {"k": 3, "requests": TEN_USERS}
    sources = [{**INDEX, "pool_size": 5}, {"ids": IDS}]
    whole = responds(service, "recommend", sources=sources, **body)
    assert {name for result in whole["results"] for name in result["sources"]} == {"movies", "ids"}
    late = hurried(service, 1500, sources=sources, **body)
    assert "source 'movies' is left out" in late["degraded_reason"]
    assert [result["sources"] for result in late["results"]] == [["ids"] * 3] * 10
    labels = {"model": "movies", "outcome": "late"}
    assert service.value("rowcast_sources_left_out_total", **labels) == degraded(service) == 1
    service.with_network("query", OverdueTower(slow_query))
    with pytest.raises(Rejected, match="DEADLINE"):
        hurried(service, OVERDUE_S / 2, sources=[INDEX, {"index": "opposite"}], **body)
