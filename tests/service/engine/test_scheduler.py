"""The scheduler's five rules, with a simulated clock and a compute function that the test controls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.engine.compute_pool import ComputePool
from service.engine.context import RequestContext
from service.engine.scheduler import BatchQueue, Job, LatencyEstimates, Scheduler
from service.errors import Cancelled, DeadlineExceeded, InvalidArgument, NotReady, Overloaded
from service.models.manager import VersionManager
from service.models.version import ModelVersion
from service.observability.metrics import Metrics

FAR = 1e9


class Bench:
    """A scheduler over a clock that the test sets; remembers which jobs were computed together, and where."""

    def __init__(self, threads: int = 1, inline_max_s: float = 1.0, max_queued: int = 1000) -> None:
        self.now = 100.0
        self.batches: list[list[Any]] = []
        self.on_loop: list[bool] = []
        self.answer: Callable[[Any], Any] = lambda request: request
        self.before: Callable[[], object] = lambda: None
        self.pool = ComputePool(threads)
        self.closed = 0
        self.versions = VersionManager()
        nothing: Any = None
        version = ModelVersion("m", 1, Path(), nothing, {}, nothing, {}, {}, {}, {}, close=self._close)
        self.versions.put(version)
        self.scheduler = Scheduler(
            self._compute,
            self.pool,
            Metrics(),
            inline_max_s=inline_max_s,
            max_queued_candidates=max_queued,
            retry_after_s=0.1,
            batch_max=3,
            clock=lambda: self.now,
        )

    def _close(self) -> None:
        self.closed += 1

    def _compute(self, batch: Sequence[Job], pool: ComputePool | None) -> Sequence[Any]:
        self.batches.append([job.request for job in batch])
        self.on_loop.append(pool is None)
        self.before()
        return [self.answer(job.request) for job in batch]

    def job(self, request: Any, key: Any = None, cost: int = 1, deadline: float = FAR, kind: str = "kind") -> Job:
        context = RequestContext("rank", f"id-{request}", deadline)
        future = asyncio.get_running_loop().create_future()
        return Job(request, context, self.versions.acquire("m"), kind, cost, key, future)

    def run(self, request: Any, **options: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self.scheduler.run(self.job(request, **options)))

    async def learn(self, kind: str = "kind") -> None:
        """Has one job of a kind computed, so that it is known to be short."""
        await self.run("first", kind=kind)
        self.batches.clear()
        self.on_loop.clear()


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(**options))
        return made[-1]

    yield make
    for each in made:
        each.scheduler.close()


def test_scheduler_unknown_kind_is_computed_in_the_pool_then_on_the_loop(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        assert await one.run("a") == "a"
        assert await one.run("b") == "b"
        assert one.on_loop == [False, True]

    asyncio.run(main())


def test_scheduler_long_kind_stays_in_the_pool(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(inline_max_s=0.0)
        for request in range(3):
            assert await one.run(request) == request
        assert one.on_loop == [False] * 3

    asyncio.run(main())


def test_scheduler_equal_keys_in_one_turn_are_one_batch_in_order(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        waiting = [one.run(n, key="same") for n in range(4)] + [one.run("other", key="x"), one.run("alone")]
        assert await asyncio.gather(*waiting) == [0, 1, 2, 3, "other", "alone"]
        assert one.batches == [[0, 1, 2], [3], ["other"], ["alone"]]

    asyncio.run(main())


def test_scheduler_jobs_arriving_while_busy_are_batched_afterwards(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(inline_max_s=0.0)
        entered, release = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            release.wait(20)

        one.before = hold
        first = one.run("first", key="same")
        await asyncio.to_thread(entered.wait, 20)
        later = [one.run(n, key="same") for n in range(2)]
        await asyncio.sleep(0)
        release.set()
        assert await asyncio.gather(first, *later) == ["first", 0, 1]
        assert one.batches == [["first"], [0, 1]]

    asyncio.run(main())


def test_scheduler_queue_full_by_cost_rejects_with_retry_after(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(max_queued=10)
        await one.learn()
        accepted = [one.run("a", cost=50), one.run("b", cost=1)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as rejected:
            await one.scheduler.run(one.job("c", cost=1))
        assert (rejected.value.reason, rejected.value.retry_after_s) == ("queue", 0.1)
        assert await accepted[0] == "a"  # alone, whatever it costs
        assert isinstance((await asyncio.gather(accepted[1], return_exceptions=True))[0], Overloaded)

    asyncio.run(main())


def test_scheduler_deadline_before_the_estimated_turn_rejects_at_once(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        for kind in ("slow", "rank"):
            one.scheduler.estimates.observe(kind, 0.5)
        first = one.run("a", kind="slow", deadline=one.now + 10)
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as rejected:
            await one.scheduler.run(one.job("b", kind="slow", deadline=one.now + 0.6))
        assert rejected.value.reason == "deadline"
        assert rejected.value.retry_after_s >= 0.5
        assert await first == "a"
        assert one.batches == [["a"]]

    asyncio.run(main())


def test_scheduler_expired_member_is_dropped_alone_before_computing(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        waiting = [one.run("late", key="k", deadline=one.now + 1), one.run("good", key="k")]
        await asyncio.sleep(0)
        one.now += 2
        late, good = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(late, DeadlineExceeded)
        assert good == "good"
        assert one.batches == [["good"]]

    asyncio.run(main())


def test_scheduler_cancelled_member_is_dropped_alone(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        gone, good = asyncio.ensure_future(one.run("gone", key="k")), one.run("good", key="k")
        await asyncio.sleep(0)
        gone.cancel()
        assert await good == "good"
        assert one.batches == [["good"]]
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(main())


def test_scheduler_client_that_hangs_up_while_queued_is_never_computed(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(inline_max_s=0.0)
        entered, release = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            release.wait(20)

        one.before = hold
        first = one.run("first")
        await asyncio.to_thread(entered.wait, 20)
        hung_up = asyncio.Event()
        job = one.job("gone")
        job.context.disconnected = hung_up.wait
        waiting = asyncio.ensure_future(one.scheduler.run(job))
        await asyncio.sleep(0)
        hung_up.set()
        with pytest.raises(Cancelled):
            await waiting
        release.set()
        assert await first == "first"
        assert one.batches == [["first"]]

    asyncio.run(main())


def test_scheduler_deadline_that_passes_while_computing_answers_in_time(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(inline_max_s=0.0)
        release = threading.Event()
        one.before = lambda: release.wait(20)
        with pytest.raises(DeadlineExceeded):
            await one.scheduler.run(one.job("slow", deadline=one.now + 0.05))
        release.set()

    asyncio.run(main())


def test_scheduler_failed_member_fails_alone(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        one.answer = lambda request: InvalidArgument("bad") if request == "bad" else request
        outcomes: list[Any] = [one.run(name, key="k") for name in ("bad", "good")]
        outcomes = await asyncio.gather(*outcomes, return_exceptions=True)
        assert isinstance(outcomes[0], InvalidArgument)
        assert outcomes[1] == "good"

    asyncio.run(main())


def test_scheduler_every_outcome_releases_the_version(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench(max_queued=10)
        await one.learn()
        gone = asyncio.ensure_future(one.run("gone"))
        rest = [one.run("late", deadline=one.now - 1), one.run("big", cost=100), one.run("good")]
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, *rest, return_exceptions=True)
        one.versions.close()
        one.versions.wait_closed()
        assert one.closed == 1

    asyncio.run(main())


def test_scheduler_close_fails_what_waits(bench: Callable[..., Bench]) -> None:
    async def main() -> None:
        one = bench()
        await one.learn()
        waiting = one.run("a")
        await asyncio.sleep(0)
        one.scheduler.close()
        with pytest.raises(NotReady):
            await waiting

    asyncio.run(main())


def test_batch_queue_counts_cost_and_expected_time_of_what_waits() -> None:
    async def main() -> None:
        queue, one = BatchQueue(2), Bench()
        jobs = [one.job(n, key="k" if n < 3 else None, cost=n) for n in range(5)]
        for job in jobs:
            job.expected_s = 0.5
            queue.add(job)
        assert (len(queue), queue.cost, queue.expected_s) == (5, 10, 2.5)
        assert queue.take() == jobs[:2]
        assert queue.remove(jobs[2])
        assert not queue.remove(jobs[2])
        assert queue.take() == [jobs[3]]
        assert queue.take() == [jobs[4]]
        assert queue.take() == []
        assert (len(queue), queue.cost, queue.expected_s) == (0, 0, 0.0)

    asyncio.run(main())


def test_latency_estimates_follow_new_measurements() -> None:
    estimates = LatencyEstimates()
    assert estimates.expected_s("a") is None
    estimates.observe("a", 1.0)
    assert estimates.expected_s("a") == 1.0
    for _ in range(100):
        estimates.observe("a", 3.0)
    assert estimates.expected_s("a") == pytest.approx(3.0, abs=0.01)


def test_compute_pool_parallel_runs_each_once_and_raises_the_failure() -> None:
    pool, done = ComputePool(3), list[int]()
    pool.parallel(100, done.append)
    assert sorted(done) == list(range(100))
    assert pool.idle == 3

    def fail(number: int) -> None:
        if number == 5:
            raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        pool.parallel(100, fail)
    assert pool.idle == 3
    pool.close()
