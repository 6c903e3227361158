"""What the scheduler rejects, and what its jobs do to each other, with a simulated clock and a
compute function that the test controls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.engine.computation import RemoteCall
from service.engine.context import RequestContext
from service.engine.scheduling.compute_pool import ComputePool
from service.engine.scheduling.queues import Job
from service.engine.scheduling.scheduler import Scheduler
from service.errors import (
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
)
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion

pytestmark = pytest.mark.anyio
FAR = 1e9


class Simulation:
    """A scheduler over a clock that the test sets; remembers which jobs were computed together."""

    def __init__(self, inline_max_s: float = 1.0, max_queued: int = 1000) -> None:
        self.now = 100.0
        self.batches: list[list[Any]] = []
        self.compute: Callable[[Any], Any] = lambda request: request
        self.calls: dict[Any, RemoteCall[Any]] = {}
        """What the computation of a request awaits, by request."""
        pool = ComputePool(1)
        self.versions = VersionManager()
        nothing: Any = None
        version = ModelVersion(
            "m", 1, Path(), nothing, {}, nothing, {}, {}, {}, {}, close=lambda: None
        )
        self.versions.add(version)
        self.versions.arrange("m", Arrangement(1, frozenset((1,))))
        self.scheduler = Scheduler(
            self._compute,
            pool,
            Metrics(),
            inline_max_s=inline_max_s,
            alone_max_s=inline_max_s,
            max_queued_candidates=max_queued,
            retry_after_s=0.1,
            batch_max=4,
            clock=lambda: self.now,
        )

    async def _compute(self, batch: Sequence[Job], pool: ComputePool | None) -> Sequence[Any]:
        self.batches.append([job.request for job in batch])
        for job in batch:
            if job.request in self.calls:
                return [await self.calls[job.request]]
        return [self.compute(job.request) for job in batch]

    def job(
        self,
        request: Any,
        key: Any = None,
        cost: int = 1,
        deadline: float = FAR,
        kind: str = "kind",
    ) -> Job:
        context = RequestContext("rank", f"id-{request}", deadline)
        future = asyncio.get_running_loop().create_future()
        lease = self.versions.acquire("m")
        return Job(request, context, lease, kind, ("m", "rank"), cost, lambda: key, future)

    def run(self, request: Any, **options: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self.scheduler.run(self.job(request, **options)))

    async def learn(self) -> None:
        """Has one job computed, so that its kind is known to be short."""
        await self.run("first")
        self.batches.clear()


Make = Callable[..., Simulation]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def simulate() -> Iterator[Make]:
    simulations: list[Simulation] = []

    def make(**options: Any) -> Simulation:
        simulations.append(Simulation(**options))
        return simulations[-1]

    yield make
    for simulation in simulations:
        simulation.scheduler.close()


async def test_scheduler_queue_full_by_cost_rejects_with_retry_after(simulate: Make) -> None:
    simulation = simulate(max_queued=10)
    await simulation.learn()
    accepted = [simulation.run("a", cost=50), simulation.run("b", cost=1)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as rejected:
        await simulation.scheduler.run(simulation.job("c", cost=1))
    assert (rejected.value.reason, rejected.value.retry_after_s) == ("queue", 0.1)
    assert await accepted[0] == "a"  # alone, whatever it costs
    assert isinstance((await asyncio.gather(accepted[1], return_exceptions=True))[0], Overloaded)


async def test_scheduler_deadline_before_the_estimated_turn_rejects_at_once(simulate: Make) -> None:
    simulation = simulate()
    await simulation.learn()
    for kind in ("slow", ("m", "rank")):
        simulation.scheduler.estimates.observe(kind, 0.5)
    first = simulation.run("a", kind="slow", deadline=simulation.now + 10)
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as rejected:
        await simulation.scheduler.run(
            simulation.job("b", kind="slow", deadline=simulation.now + 0.6)
        )
    assert rejected.value.reason == "deadline"
    assert rejected.value.retry_after_s >= 0.5
    assert await first == "a"
    assert simulation.batches == [["a"]]


async def test_scheduler_member_that_expires_is_cancelled_or_fails_leaves_the_others_of_its_batch(
    simulate: Make,
) -> None:
    simulation = simulate()
    await simulation.learn()
    simulation.compute = lambda request: InvalidArgument("bad") if request == "bad" else request
    late = simulation.run("late", key="k", deadline=simulation.now + 1)
    gone = asyncio.ensure_future(simulation.run("gone", key="k"))
    waiting = [late, gone, simulation.run("bad", key="k"), simulation.run("good", key="k")]
    await asyncio.sleep(0)
    simulation.now += 2
    gone.cancel()
    *failed, good = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failed] == [
        DeadlineExceeded,
        asyncio.CancelledError,
        InvalidArgument,
    ]
    assert good == "good"
    assert simulation.batches == [["bad", "good"]]


async def test_scheduler_short_requests_that_cost_less_together_come_to_share_one_batch(
    simulate: Make,
) -> None:
    simulation = simulate(inline_max_s=0.0005)

    def compute(request: Any) -> Any:
        # A batch takes 0.3 ms, and 0.07 ms for each further request.
        simulation.now += 0.00007
        if request == simulation.batches[-1][0]:
            simulation.now += 0.00023
        return request

    simulation.compute = compute
    for number in range(20):
        await simulation.run(f"alone {number}")
    for _ in range(20):
        simulation.batches.clear()
        await asyncio.gather(*(simulation.run(number, key="k") for number in range(4)))
    assert simulation.batches == [[0, 1, 2, 3]]


async def test_scheduler_requests_one_after_another_are_computed_as_they_arrive(
    simulate: Make,
) -> None:
    simulation = simulate()
    await simulation.learn()
    simulation.now += 1
    for request in ("a", "b"):
        # Nothing but the task of the job has run.
        running = simulation.run(request, key="k")
        await asyncio.sleep(0)
        assert simulation.batches[-1] == [request]
        assert await running == request

    # The first of several that arrive at once knows nothing of the others.
    assert await asyncio.gather(*[simulation.run(name, key="k") for name in "cde"]) == list("cde")
    assert simulation.batches[2:] == [["c"], ["d", "e"]]
    # From then on, requests share their batches.
    assert await asyncio.gather(*[simulation.run(name, key="k") for name in "fg"]) == list("fg")
    assert simulation.batches[4:] == [["f", "g"]]


@pytest.mark.parametrize(("cost", "together"), [(100, [[1, 2, 3]]), (200, [[1], [2], [3]])])
async def test_scheduler_long_requests_of_many_candidates_are_computed_alone(
    simulate: Make, cost: int, together: list[list[int]]
) -> None:
    simulation = simulate(inline_max_s=0.0)
    await asyncio.gather(*(simulation.run(number, key="k", cost=cost) for number in (1, 2, 3)))
    assert simulation.batches == together


@pytest.mark.parametrize("inline_max_s", [0.0, 1.0])
async def test_scheduler_job_that_waits_for_another_process_takes_no_thread(
    simulate: Make, inline_max_s: float
) -> None:
    simulation = simulate(inline_max_s=inline_max_s)
    await simulation.learn()
    responds = asyncio.Event()
    submit = partial(asyncio.run_coroutine_threadsafe, loop=asyncio.get_running_loop())
    simulation.calls["waits"] = RemoteCall(submit, responds.wait)
    waiting = simulation.run("waits")
    assert [await simulation.run(number) for number in range(3)] == [0, 1, 2]
    responds.set()
    assert await waiting
