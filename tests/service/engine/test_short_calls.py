"""Calls that are computed on the event loop: whatever holds for those in the compute threads holds for them too."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.requests import Call, Retrieval, Retrieved, Target
from service.errors import INTERNAL_SENTENCE, DeadlineExceeded, Internal, InvalidArgument, Overloaded
from tests.service.running import CALL, FailingTower, Running, WaitingTower, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
ASKED = Retrieval(Target(), features={"user": column(1)})
LIMIT_US = 100_000
"""So that every call of these tests is short, however busy the machine."""


class SeenTower(WaitingTower):
    """Tells in which threads it was run; computes for `burn_s` seconds before."""

    def __init__(self, network: Any, burn_s: float = 0.0) -> None:
        super().__init__(network)
        self.burn_s = burn_s
        self.threads: list[threading.Thread] = []
        self.sizes: list[int] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.threads.append(threading.current_thread())
        self.sizes.append(len(next(iter(inputs.values()))))
        end = time.thread_time() + self.burn_s
        while time.thread_time() < end:
            pass
        return self._network.run(inputs)


def seen(service: Running) -> SeenTower:
    current = service.switch.current("movies")
    assert current is not None
    tower = SeenTower(current.towers["query"].parts[0].network)
    service.with_network("query", tower)
    return tower


async def learnt(service: Running, asked: Retrieval = ASKED) -> Retrieved:
    """Asks once in a compute thread, so that the next call of the kind is known to be short."""
    return await service.engine.retrieve(asked, CALL)


async def queued(service: Running, call: Call = CALL) -> asyncio.Task[Retrieved]:
    """Returns a call that was admitted and waits for its turn on the loop."""
    task = asyncio.create_task(service.engine.retrieve(ASKED, call))
    await asyncio.sleep(0)
    assert service.engine.in_flight
    return task


def test_short_call_is_computed_on_the_loop_with_the_same_answer(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def twice() -> tuple[Retrieved, Retrieved]:
        return await learnt(service), await service.engine.retrieve(ASKED, CALL)

    first, second = asyncio.run(twice())
    assert [thread is threading.main_thread() for thread in tower.threads] == [False, True]
    assert second.neighbors.ids.tolist() == first.neighbors.ids.tolist()
    assert second.neighbors.scores.tobytes() == first.neighbors.scores.tobytes()
    assert service.engine.in_flight == 0
    for phase in ("admit", "queue", "compute", "search"):
        assert service.value("rowcast_phase_seconds_count", call="retrieve", phase=phase) == 2, phase


@pytest.mark.parametrize(("limit_us", "burn_s"), [(0, 0.0), (2000, 0.003)])
def test_slow_call_is_never_computed_on_the_loop(limit_us: int, burn_s: float, write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=limit_us, turn_us_max=0)
    tower = seen(service)
    tower.burn_s = burn_s

    async def often() -> None:
        for _ in range(20):
            await service.engine.retrieve(ASKED, CALL)

    asyncio.run(often())
    assert len(tower.threads) == 20
    assert threading.main_thread() not in tower.threads


def test_call_that_turns_slow_holds_the_loop_up_once(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=20_000, turn_us_max=0)
    tower = seen(service)

    async def slower() -> None:
        await learnt(service)
        tower.burn_s = 0.25  # once is enough to make the usual time too long
        for _ in range(3):
            await service.engine.retrieve(ASKED, CALL)

    asyncio.run(slower())
    assert [thread is threading.main_thread() for thread in tower.threads] == [False, True, False, False]


def test_call_whose_deadline_passes_before_its_turn_computes_nothing(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def late() -> None:
        await learnt(service)
        deadline = time.monotonic() + 0.05
        task = await queued(service, Call("late", deadline))
        while time.monotonic() < deadline:
            pass
        with pytest.raises(DeadlineExceeded):
            await task

    asyncio.run(late())
    assert len(tower.threads) == 1
    assert service.engine.in_flight == 0


def test_call_whose_deadline_passes_in_its_turn_is_not_answered(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def late() -> None:
        await learnt(service)
        tower.burn_s = 0.2
        with pytest.raises(DeadlineExceeded):
            await service.engine.retrieve(ASKED, Call("late", time.monotonic() + 0.1))

    asyncio.run(late())
    assert len(tower.threads) == 2
    assert service.engine.in_flight == 0


def test_call_cancelled_before_its_turn_computes_nothing_and_gives_its_permit_back(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def gone() -> None:
        await learnt(service)
        task = await queued(service)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await service.engine.drained(20)

    asyncio.run(gone())
    assert len(tower.threads) == 1


def test_calls_that_wait_for_their_turn_count_against_the_limit(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US, in_flight_max=2)

    async def crowd() -> None:
        await learnt(service)
        calls = [service.engine.retrieve(ASKED, CALL) for _ in range(5)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Retrieved, Retrieved, Overloaded, Overloaded, Overloaded]

    asyncio.run(crowd())
    assert service.engine.in_flight == 0


def test_version_is_pinned_while_a_call_waits_for_its_turn_and_closed_in_another_thread(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US, keep_previous=False)
    closed: list[threading.Thread] = []
    before = service.switch.current("movies")
    assert before is not None
    close = before.close

    def seen_close() -> None:
        closed.append(threading.current_thread())
        close()

    object.__setattr__(before, "close", seen_close)

    async def swapped() -> None:
        await learnt(service)
        task = await queued(service)
        write(version=2)
        service.scan()
        assert not closed
        assert (await task).version == 1
        assert (await service.engine.retrieve(ASKED, CALL)).version == 2

    asyncio.run(swapped())
    end = time.monotonic() + 20
    while not closed and time.monotonic() < end:
        time.sleep(0.001)
    assert len(closed) == 1
    assert closed[0] is not threading.main_thread()


def test_failures_on_the_loop_are_told_as_those_in_the_threads(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def failing() -> None:
        await learnt(service)
        with pytest.raises(InvalidArgument, match="user"):
            await service.engine.retrieve(Retrieval(Target(), features={"user": column(0.5)}), CALL)
        assert len(tower.threads) == 1
        service.with_network("query", FailingTower(tower))
        with pytest.raises(Internal) as failed:
            await service.engine.retrieve(ASKED, CALL)
        assert str(failed.value) == INTERNAL_SENTENCE

    asyncio.run(failing())
    assert service.engine.in_flight == 0


def test_failing_calls_teach_nothing_of_how_long_a_call_takes(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)
    refused = Retrieval(Target(), features={"user": column(1)}, attributes=("no such",))

    async def failing() -> None:
        for _ in range(3):
            with pytest.raises(InvalidArgument):
                await service.engine.retrieve(refused, CALL)
        await service.engine.retrieve(Retrieval(Target(), features={"user": column(1)}, attributes=("title",)), CALL)

    asyncio.run(failing())
    assert tower.threads[0] is not threading.main_thread()


def test_vectors_are_searched_on_the_loop_too(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    asked = Retrieval(Target(), vectors=np.ones(8, np.float32))

    async def twice() -> tuple[Retrieved, Retrieved]:
        return await learnt(service, asked), await service.engine.retrieve(asked, CALL)

    first, second = asyncio.run(twice())
    assert first.neighbors.ids.tolist() == second.neighbors.ids.tolist()
