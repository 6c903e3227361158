"""What waits for a compute thread: who is let in, who leaves early, and who is computed together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.requests import Call, Ranking, Retrieval, Retrieved, Target
from service.errors import DeadlineExceeded, Overloaded
from tests.service.process import until
from tests.service.running import CALL, WORKERS, Running, WaitingTower, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
ASKED = Retrieval(Target(), features={"user": column(1)})
LONG_S = 0.05


class HeldTower(WaitingTower):
    """Takes long, or until it is let go; counts those who are in it, and the examples of each run."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.let_go.set()
        self.inside = threading.Semaphore(0)
        self.sizes: list[int] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.sizes.append(len(next(iter(inputs.values()))))
        self.inside.release()
        end = time.thread_time() + LONG_S
        while time.thread_time() < end:
            pass
        return super().run(inputs)


class Crowd:
    """A service whose compute threads are all held up, and that knows how long a call takes."""

    def __init__(self, service: Running) -> None:
        self.service = service
        current = service.switch.current("movies")
        assert current is not None
        self.tower = HeldTower(current.towers["query"].parts[0].network)
        service.with_network("query", self.tower)
        self.held: list[asyncio.Task[Retrieved]] = []

    async def hold(self) -> None:
        """Learns how long a call takes, then fills every thread."""
        await self.ask()
        self.tower.let_go.clear()
        while self.tower.inside.acquire(blocking=False):
            pass
        self.held = [self.begin() for _ in range(WORKERS)]
        for _ in self.held:
            assert await asyncio.to_thread(self.tower.inside.acquire, timeout=20)
        self.tower.sizes.clear()

    def ask(self, call: Call = CALL, asked: Retrieval = ASKED) -> Coroutine[Any, Any, Retrieved]:
        return self.service.engine.retrieve(asked, call)

    def begin(self, call: Call = CALL, asked: Retrieval = ASKED) -> asyncio.Task[Retrieved]:
        return asyncio.create_task(self.ask(call, asked))

    async def let_go(self) -> None:
        self.tower.let_go.set()
        await asyncio.gather(*self.held)
        assert await self.service.engine.drained(20)
        assert self.service.engine.in_flight == self.waiting == 0

    @property
    def waiting(self) -> float:
        return self.service.value("rowcast_queue_calls")

    def shed(self, reason: str) -> float:
        return self.service.value("rowcast_shed_total", call="retrieve", reason=reason)


def crowded(run: Run, **settings: Any) -> Crowd:
    return Crowd(run(inline_us_max=0, **settings))


def within(seconds: float) -> Call:
    return Call("hurried", time.monotonic() + seconds)


def test_call_that_would_be_late_is_refused_when_it_comes(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run, retry_after_s=0.01)

    async def hurry() -> None:
        await crowd.hold()
        waits = [crowd.begin() for _ in range(4)]
        await asyncio.sleep(0)
        assert crowd.waiting == 4
        with pytest.raises(Overloaded, match="to be sure of its deadline") as refused:
            await crowd.ask(within(LONG_S))
        # Two threads work off four calls, and are half done with two others.
        assert LONG_S * 2 < refused.value.retry_after_s < 60
        assert (refused.value.reason, crowd.shed("deadline")) == ("deadline", 1)
        assert (crowd.waiting, crowd.service.engine.in_flight) == (4, 6)
        patient = crowd.begin(within(60))
        await crowd.let_go()
        assert len(await asyncio.gather(*waits, patient)) == 5

    asyncio.run(hurry())
    assert crowd.shed("deadline") == 1


def test_call_that_would_be_late_is_refused_before_it_is_decoded(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run)
    engine = crowd.service.engine

    async def hurry() -> None:
        await crowd.hold()
        with pytest.raises(Overloaded, match="to be sure of its deadline"):
            engine.enter("retrieve", time.monotonic() + LONG_S / 4)
        engine.enter("retrieve", time.monotonic() + 60).release()
        engine.enter("rank", time.monotonic() + LONG_S / 4).release()  # nothing is known of how long those take
        await crowd.let_go()

    asyncio.run(hurry())


def test_call_without_a_deadline_is_held_to_the_services_own_limit(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run, timeout_s=2)

    async def many() -> None:
        await crowd.hold()
        tasks = [crowd.begin() for _ in range(60)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="to be sure of its deadline"):
            crowd.service.engine.enter("retrieve")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        crowd.service.engine.enter("retrieve").release()
        await crowd.let_go()

    asyncio.run(many())


def test_calls_that_enter_find_the_room_that_those_before_them_left(write: Write, run: Run) -> None:
    write()
    engine = run(in_flight_max=6).engine
    permits = []
    for _ in range(6):
        assert engine.refusal("retrieve", None) is None
        permits.append(engine.enter("retrieve"))
    assert engine.refusal("retrieve", None) is not None
    permits.pop().release()
    assert engine.refusal("retrieve", None) is None


def test_call_behind_a_full_line_is_refused_also_before_it_is_decoded(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run, in_line_max=2)
    engine = crowd.service.engine

    async def press() -> None:
        await crowd.hold()
        waits = [crowd.begin() for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 calls wait in line"):
            await crowd.ask()
        with pytest.raises(Overloaded, match="2 calls wait in line") as full:
            engine.enter("retrieve")
        assert full.value.reason == "line"
        engine.enter("rank").release()  # it may be short
        await crowd.let_go()
        await asyncio.gather(*waits)

    asyncio.run(press())
    assert crowd.shed("line") == 2
    assert engine.in_flight == 0


def test_caller_that_leaves_the_line_leaves_its_place(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run, in_flight_max=WORKERS + 1)

    async def leave() -> None:
        await crowd.hold()
        for _ in range(3):  # each finds the place of the one before
            gone = crowd.begin()
            await asyncio.sleep(0)
            assert crowd.waiting == 1
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert (crowd.waiting, crowd.service.engine.in_flight) == (0, WORKERS)
        await crowd.let_go()

    asyncio.run(leave())
    assert crowd.shed("gone") == 3
    assert crowd.tower.sizes == []


def test_call_whose_time_is_over_leaves_the_line(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run)

    async def late() -> None:
        await crowd.hold()
        with pytest.raises(DeadlineExceeded):
            await crowd.ask(within(LONG_S * 20))  # let in, as the threads should be done by then
        assert (crowd.waiting, crowd.service.engine.in_flight) == (0, WORKERS)
        await crowd.let_go()

    asyncio.run(late())
    assert crowd.shed("expired") == 1
    assert crowd.tower.sizes == []


def test_calls_are_computed_in_the_order_they_came(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run)
    ended: list[int] = []

    async def in_order() -> None:
        await crowd.hold()
        tasks = [crowd.begin(asked=Retrieval(Target(), k=k, features={"user": column(1)})) for k in (3, 4, 5, 6)]
        for number, task in enumerate(tasks):
            task.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
        await asyncio.sleep(0)
        await crowd.let_go()
        await asyncio.gather(*tasks)

    asyncio.run(in_order())
    assert ended[0] in {0, 1}  # one in each thread; the next begins when one of them has ended
    assert ended.index(3) >= 2


def test_calls_alike_that_wait_are_computed_as_one_and_leave_no_thread_idle(write: Write, run: Run) -> None:
    write()
    crowd = crowded(run)

    async def alike() -> tuple[list[Retrieved], Retrieved]:
        alone = await crowd.ask()
        await crowd.hold()
        tasks = [crowd.begin() for _ in range(6)]
        await asyncio.sleep(0)
        await crowd.let_go()
        return await asyncio.gather(*tasks), alone

    answers, alone = asyncio.run(alike())
    assert max(crowd.tower.sizes) == 3  # half of those that wait, since there are two threads
    for answer in answers:
        assert answer.neighbors.ids.tobytes() == alone.neighbors.ids.tobytes()
        assert answer.neighbors.scores.tobytes() == alone.neighbors.scores.tobytes()
    assert crowd.service.value("rowcast_batch_calls_sum", call="retrieve") == 6 + WORKERS + 2
    assert crowd.service.value("rowcast_batch_calls_count", call="retrieve") < 6 + WORKERS + 2


def ranking(candidates: int) -> Ranking:
    ids = np.full(candidates, 1000, np.int64)
    return Ranking(Target(), {"user": column(1)}, candidate_ids=ids)


def test_candidates_in_flight_are_bounded_but_for_a_call_alone(write: Write, run: Run) -> None:
    write()
    service = run(in_flight_candidates_max=10)

    async def crowd() -> None:
        assert (await service.engine.rank(ranking(12), CALL)).scores.size == 12
        calls = [service.engine.rank(ranking(size), CALL) for size in (6, 4, 1)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == ["Ranked", "Ranked", "Overloaded"]
        assert isinstance(answers[2], Overloaded)
        assert "calls with 10 candidates are in flight, 1 more would be over 10" in str(answers[2])

    asyncio.run(crowd())
    assert service.value("rowcast_shed_total", call="rank", reason="candidates") == 1
    assert service.engine.in_flight == 0


def test_engine_that_closes_ends_its_threads(write: Write, run: Run) -> None:
    write()
    before = set(threading.enumerate())
    service = run()
    begun = set(threading.enumerate()) - before
    assert len(begun) == WORKERS
    service.engine.close()
    until(lambda: not begun & set(threading.enumerate()))
