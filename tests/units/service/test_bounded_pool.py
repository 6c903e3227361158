"""Calls that wait: how many, for how long, and what becomes of those for which nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from service.bounded_pool import BoundedPool
from service.errors import DeadlineExceeded, Overloaded
from tests.e2e.process import until

WAIT_S = 30.0


def deadline(seconds: float = WAIT_S) -> float:
    return time.monotonic() + seconds


def test_a_call_keeps_its_place_until_its_thread_ends_whoever_waits_for_it() -> None:
    rejected = list[str]()
    pool = BoundedPool("calls", 2, 1, on_rejection=rejected.append)
    released = threading.Event()

    async def fill() -> None:
        with pytest.raises(DeadlineExceeded):
            await pool.run(lambda: released.wait(WAIT_S), deadline(0.01), "a")
        # The one owner has its share, and the other has not.
        with pytest.raises(Overloaded):
            await pool.run(list, deadline(), "a")
        assert await pool.run(list, deadline(), "b") == []
        with pool.admit("b"), pytest.raises(Overloaded):
            pool.check("c")
        pool.check("c")

    asyncio.run(fill())
    assert (rejected, pool.calls) == (["a", "c"], 1)
    released.set()
    until(lambda: not pool.calls)
    pool.check("a")
    pool.close()


def test_a_result_and_an_error_reach_whoever_waits() -> None:
    pool = BoundedPool("calls", 1)

    def fail() -> None:
        raise TimeoutError("its own")

    async def call() -> None:
        assert await pool.run(threading.get_ident, deadline()) != threading.get_ident()
        with pytest.raises(TimeoutError, match="its own"):
            await pool.run(fail, deadline())
        # One whose deadline has passed is not begun, or not waited for.
        with pytest.raises(DeadlineExceeded):
            await pool.run(lambda: time.sleep(0.1), deadline(-1))

    asyncio.run(call())
    pool.close()
