"""The compute threads."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

import pytest

from service.engine.threads import ComputeThreads


def test_tasks_are_taken_up_in_order_and_by_all_threads() -> None:
    threads = ComputeThreads(3)
    gate = threading.Barrier(3)
    names: SimpleQueue[str] = SimpleQueue()

    def tell() -> None:
        gate.wait(20)
        names.put(threading.current_thread().name)

    for _ in range(3):
        threads.submit(tell)
    assert {names.get(timeout=20) for _ in range(3)} == {f"rowcast-compute_{number}" for number in range(3)}
    order: SimpleQueue[int] = SimpleQueue()
    one = ComputeThreads(1)
    for number in range(5):
        one.submit(lambda number=number: order.put(number))  # type: ignore[misc]
    assert [order.get(timeout=20) for _ in range(5)] == [0, 1, 2, 3, 4]
    threads.close()
    one.close()


def test_task_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads = ComputeThreads(1)
    answers: SimpleQueue[int] = SimpleQueue()
    threads.submit(lambda: 1 / 0)
    threads.submit(lambda: answers.put(7))
    assert answers.get(timeout=20) == 7
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == ["task_failed"]
    threads.close()


def test_closed_threads_end_the_task_they_are_at_and_begin_no_further_one() -> None:
    before = set(threading.enumerate())
    threads = ComputeThreads(1)
    (thread,) = set(threading.enumerate()) - before
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        assert go.wait(20)
        done.append("first")

    threads.submit(first)
    assert begun.wait(20)
    threads.submit(lambda: done.append("second"))
    threads.close()
    go.set()
    thread.join(20)
    assert done == ["first"]
