"""The scheduler's five rules, with a simulated clock and a compute function that the
test controls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.engine.computation import RemoteCall
from service.engine.context import RequestContext
from service.engine.scheduling.compute_pool import ComputePool
from service.engine.scheduling.queues import Job
from service.engine.scheduling.scheduler import Scheduler
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    ServiceError,
)
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion

pytestmark = pytest.mark.anyio
FAR = 1e9


class Simulation:
    """A scheduler over a clock that the test sets; remembers which jobs were computed together, and
    where.
    """

    def __init__(self, inline_max_s: float = 1.0, max_queued: int = 1000, threads: int = 1) -> None:
        self.now = 100.0
        self.batches: list[list[Any]] = []
        self.on_loop: list[bool] = []
        self.compute: Callable[[Any], Any] = lambda request: request
        self.calls: dict[Any, RemoteCall[Any]] = {}
        """What the computation of a request awaits, by request."""
        self.before: Callable[[], object] = lambda: None
        self.entered = threading.Event()
        self.release = threading.Event()
        self.pool = ComputePool(threads)
        self.closed = 0
        self.versions = VersionManager()
        nothing: Any = None
        version = ModelVersion(
            "m", 1, Path(), nothing, {}, nothing, {}, {}, {}, {}, close=self._close
        )
        self.versions.add(version)
        self.versions.arrange("m", Arrangement(1, frozenset((1,))))
        self.scheduler = Scheduler(
            self._compute,
            self.pool,
            Metrics(),
            inline_max_s=inline_max_s,
            max_queued_candidates=max_queued,
            retry_after_s=0.1,
            batch_max=4,
            clock=lambda: self.now,
        )

    def _close(self) -> None:
        self.closed += 1

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def _compute(self, batch: Sequence[Job], pool: ComputePool | None) -> Sequence[Any]:
        self.batches.append([job.request for job in batch])
        self.on_loop.append(pool is None)
        self.before()
        for job in batch:
            if job.request in self.calls:
                try:
                    return [await self.calls[job.request]]
                except ServiceError as problem:
                    return [problem]
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
        return Job(request, context, lease, kind, ("m", "rank"), cost, key, future)

    def run(self, request: Any, **options: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self.scheduler.run(self.job(request, **options)))

    async def learn(self) -> None:
        """Has one job computed, so that its kind is known to be short."""
        await self.run("first")
        self.batches.clear()

    def _wait(self) -> None:
        self.entered.set()
        self.release.wait(20)

    async def hold(self, deadline: float = FAR) -> Awaitable[Any]:
        """Returns a job that is being computed, until `release` is set."""
        self.before = self._wait
        first = self.run("first", key="same", deadline=deadline)
        await asyncio.to_thread(self.entered.wait, 20)
        return first


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


@pytest.mark.parametrize(
    ("inline_max_s", "on_loop"), [(1.0, [False, True, True]), (0.0, [False] * 3)]
)
async def test_scheduler_kind_that_is_known_to_be_short_is_computed_on_the_loop(
    simulate: Make, inline_max_s: float, on_loop: list[bool]
) -> None:
    simulation = simulate(inline_max_s=inline_max_s)
    for request in range(3):
        assert await simulation.run(request) == request
    assert simulation.on_loop == on_loop


async def test_scheduler_equal_keys_in_one_turn_are_one_batch_in_order(simulate: Make) -> None:
    simulation = simulate()
    await simulation.learn()
    waiting = [simulation.run(n, key="same") for n in range(5)] + [
        simulation.run("other", key="x"),
        simulation.run("alone"),
    ]
    assert await asyncio.gather(*waiting) == [0, 1, 2, 3, 4, "other", "alone"]
    assert simulation.batches == [[0, 1, 2, 3], [4], ["other"], ["alone"]]


async def test_scheduler_batch_on_the_loop_is_as_short_as_its_limit(simulate: Make) -> None:
    simulation = simulate(inline_max_s=0.01)
    await simulation.learn()
    simulation.scheduler.estimates.observe("slow", 0.004)
    jobs = [simulation.run(number, key="same", kind="slow") for number in range(6)]
    await asyncio.gather(*jobs)
    assert all(simulation.on_loop[1:])
    assert [len(batch) for batch in simulation.batches] == [2, 2, 2]


async def test_scheduler_batch_of_a_kind_of_unknown_time_is_limited_by_cost(simulate: Make) -> None:
    simulation = simulate(max_queued=100_000)
    first = await simulation.hold()
    jobs = [simulation.run(cost, key="same", cost=cost) for cost in (3000, 1000, 1000, 9000)]
    await asyncio.sleep(0)
    simulation.release.set()
    await asyncio.gather(first, *jobs)
    assert simulation.batches == [["first"], [3000, 1000], [1000], [9000]]


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


async def test_scheduler_wait_is_corrected_by_how_long_jobs_really_waited(simulate: Make) -> None:
    simulation = simulate()
    await simulation.learn()
    simulation.before = lambda: simulation.advance(0.01)
    for _ in range(100):
        await simulation.run("usual")

    def respond(request: Any) -> Any:
        # What else the loop does makes each job wait eight times as long as computing takes.
        asyncio.get_running_loop().call_soon(simulation.advance, 0.07)
        return request

    simulation.compute = respond
    for _ in range(20):
        await asyncio.gather(*(simulation.run(number) for number in range(4)))
    waiting = [simulation.run(number) for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as rejected:  # 0.05 s without the correction
        await simulation.scheduler.run(simulation.job("late", deadline=simulation.now + 0.2))
    assert rejected.value.reason == "deadline"
    await asyncio.gather(*waiting)

    simulation.compute = lambda request: request
    for _ in range(50):
        await simulation.run("usual")
    waiting = [simulation.run(number) for number in range(4)]
    await asyncio.sleep(0)
    assert (
        await simulation.scheduler.run(simulation.job("in time", deadline=simulation.now + 0.2))
        == "in time"
    )
    await asyncio.gather(*waiting)


async def test_scheduler_request_before_its_body_is_judged_by_its_own_model(simulate: Make) -> None:
    simulation = simulate()
    await simulation.learn()
    simulation.scheduler.estimates.observe(("heavy", "rank"), 0.5)
    first = simulation.run("a")
    await asyncio.sleep(0)
    assert simulation.scheduler.overload("m", "rank", simulation.now + 0.1) is None
    assert simulation.scheduler.overload("", "rank", simulation.now + 0.1) is None
    assert simulation.scheduler.overload("heavy", "rank", simulation.now + 0.1) is not None
    await first


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


async def test_scheduler_client_that_hangs_up_while_queued_is_never_computed(
    simulate: Make,
) -> None:
    simulation = simulate(inline_max_s=0.0)
    first = await simulation.hold()
    hung_up = asyncio.Event()
    job = simulation.job("gone")
    job.context.disconnected = hung_up.wait
    waiting = asyncio.ensure_future(simulation.scheduler.run(job))
    await asyncio.sleep(0)
    hung_up.set()
    with pytest.raises(Cancelled):
        await waiting
    simulation.release.set()
    assert await first == "first"
    assert simulation.batches == [["first"]]


async def test_scheduler_deadline_that_passes_while_computing_fails_in_time(simulate: Make) -> None:
    simulation = simulate(inline_max_s=0.0)
    slow = await simulation.hold(deadline=simulation.now + 1)
    simulation.now += 2
    with pytest.raises(DeadlineExceeded):
        await slow
    simulation.release.set()


async def test_scheduler_every_outcome_releases_the_version(simulate: Make) -> None:
    simulation = simulate(max_queued=10)
    await simulation.learn()
    gone = asyncio.ensure_future(simulation.run("gone"))
    waiting = [
        simulation.run("late", deadline=simulation.now - 1),
        simulation.run("big", cost=100),
        simulation.run("good"),
    ]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, *waiting, return_exceptions=True)
    simulation.versions.close()
    simulation.versions.wait_closed()
    assert simulation.closed == 1


def test_compute_pool_parallel_that_fails_raises_the_failure_and_is_idle_again() -> None:
    def compute(number: int) -> None:
        if number == 5:
            raise ValueError("five")

    pool = ComputePool(3)
    with pytest.raises(ValueError, match="five"):
        pool.parallel(100, compute)
    assert pool.idle == 3
    pool.close()


async def test_scheduler_batch_takes_the_thread_that_has_done_its_part_of_another(
    simulate: Make,
) -> None:
    simulation = simulate(inline_max_s=0.0, threads=2)
    queued = threading.Event()
    computed = threading.Event()

    def compute(request: Any) -> Any:
        if request == "later":
            computed.set()
            return request
        caller = threading.current_thread()
        both_started = threading.Barrier(2)

        def part(_: int) -> None:
            both_started.wait(20)
            (computed if threading.current_thread() is caller else queued).wait(20)

        simulation.entered.set()
        simulation.pool.parallel(2, part)
        return computed.is_set()

    simulation.compute = compute
    large = simulation.run("large")
    await asyncio.to_thread(simulation.entered.wait, 20)
    later = simulation.run("later")
    await asyncio.sleep(0.05)
    queued.set()
    assert list(await asyncio.gather(large, later)) == [True, "later"]


class OtherProcess:
    """Responds to the call of a job once the test releases it."""

    def __init__(
        self, simulation: Simulation, request: Any, problem: ServiceError | None = None
    ) -> None:
        self.called = asyncio.Event()
        self.release = asyncio.Event()
        self._problem = problem
        simulation.calls[request] = RemoteCall(asyncio.get_running_loop(), self._respond)

    async def _respond(self) -> str:
        self.called.set()
        await self.release.wait()
        if self._problem is not None:
            raise self._problem
        return "response"


@pytest.mark.parametrize("inline_max_s", [0.0, 1.0])
async def test_scheduler_job_that_waits_for_another_process_takes_no_thread(
    simulate: Make, inline_max_s: float
) -> None:
    simulation = simulate(inline_max_s=inline_max_s, threads=1)
    await simulation.learn()
    process = OtherProcess(simulation, "waits")
    waiting = simulation.run("waits")
    await process.called.wait()
    assert [await simulation.run(number) for number in range(3)] == [0, 1, 2]
    process.release.set()
    assert await waiting == "response"
    assert simulation.on_loop[1:] == [inline_max_s > 0] * 4
