"""Who computes what is in line: the event loop, or the compute threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from service.engine.occupancy import Occupancy
from service.engine.requests import Retrieval, Retrieved, Target
from tests.service.engine.test_short_calls import SeenTower, seen
from tests.service.running import CALL, WORKERS, Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
ASKED = Retrieval(Target(), features={"user": column(1)})
LONG_S = 0.003


def middling(run: Run, occupancy: Occupancy, **settings: Any) -> tuple[Running, SeenTower]:
    """Returns a service whose calls are too long to be computed at once, but not for a turn of the loop."""
    service = run(occupancy=occupancy, **{"inline_us_max": 0, "turn_us_max": 100_000, **settings})
    tower = seen(service)
    tower.burn_s = LONG_S
    return service, tower


async def callers(service: Running, count: int, each: int) -> list[Retrieved]:
    """Has some callers ask again and again, each as soon as it is answered."""

    async def one() -> list[Retrieved]:
        return [await service.engine.retrieve(ASKED, CALL) for _ in range(each)]

    return [answer for answers in await asyncio.gather(*(one() for _ in range(count))) for answer in answers]


def on_loop(tower: SeenTower) -> float:
    return sum(thread is threading.main_thread() for thread in tower.threads) / len(tower.threads)


def test_loop_computes_where_no_core_is_idle_and_answers_the_same(write: Write, run: Run) -> None:
    write()
    told: list[int] = []
    service, tower = middling(run, Occupancy(1, told.append))
    first = asyncio.run(callers(service, 1, 1))[0]
    assert on_loop(tower) == 0  # nothing was known of its kind
    answers = asyncio.run(callers(service, 1, 20))
    assert on_loop(tower) == 20 / 21
    assert all(answer.neighbors.scores.tobytes() == first.neighbors.scores.tobytes() for answer in answers)
    assert told == [1, 0] * 21
    assert service.engine.in_flight == 0


def test_share_of_a_worker_is_computed_at_once_whatever_others_do(write: Write, run: Run) -> None:
    write()
    service, tower = middling(run, Occupancy(WORKERS, None, lambda: WORKERS))
    asyncio.run(callers(service, 1, 1))
    tower.threads.clear()
    asyncio.run(callers(service, 6, 5))
    assert len(tower.threads) <= 30  # some were computed as one
    assert 0 < on_loop(tower) < 1


def test_threads_compute_where_calls_wait_beside_an_idle_core(write: Write, run: Run) -> None:
    write()
    service, tower = middling(run, Occupancy(2 * WORKERS))
    asyncio.run(callers(service, 2, 40))
    tower.threads.clear()
    asyncio.run(callers(service, 2, 20))
    assert on_loop(tower) == 0


def test_long_calls_are_never_computed_on_the_loop(write: Write, run: Run) -> None:
    write()
    service, tower = middling(run, Occupancy(1), turn_us_max=LONG_S * 1e6)
    asyncio.run(callers(service, 3, 10))
    assert on_loop(tower) == 0


def test_idle_cores_are_what_nobody_keeps_at_work() -> None:
    told: list[int] = []
    occupancy = Occupancy(4, told.append, lambda: 2)
    assert [occupancy.idle_beside(own) for own in (0, 1, 3)] == [2, 1, -1]
    for own in (1, 1, 3, 0):
        occupancy.keep(own)
    assert told == [1, 3, 0]
