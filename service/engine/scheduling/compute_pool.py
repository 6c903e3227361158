"""The compute threads of a process: each runs one batch at a time, and idle ones take part in large
batches.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class ComputePool:
    """A bounded thread pool that counts its idle threads."""

    def __init__(self, threads: int) -> None:
        """Creates the pool; each thread starts with its first task."""
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, "rowcast-compute")
        self._busy = 0
        self.when_idle: Callable[[], None] = lambda: None
        """Called in a thread that took part in a large batch, once it counts as idle again."""
        self._lock = threading.Lock()

    @property
    def idle(self) -> int:
        """Threads without a task."""
        return self.threads - self._busy

    def submit(self, task: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Runs a task in a thread, then `done` with its result, once the thread counts as idle;
        neither raises.
        """
        self._count(1)
        self._executor.submit(self._run, task, done)

    def parallel(self, count: int, compute: Callable[[int], None]) -> None:
        """Runs compute(0) to compute(count - 1) in the calling thread and in those that are idle;
        returns after all.

        Raises:
          Exception: what the calling thread's computations raised, else what another's did.
        """
        numbers = itertools.count()

        def work() -> None:
            try:
                while (number := next(numbers)) < count:
                    compute(number)
            except BaseException:
                for _ in range(count):  # nothing is left for the others
                    next(numbers)
                raise

        def take_part() -> None:
            try:
                work()
            finally:
                # Now, not when the slowest has ended: another batch may wait for this thread.
                self._count(-1)
                self.when_idle()

        # The calling thread takes part, and needs no helper for its own share.
        helpers = max(0, min(count - 1, self.idle))
        self._count(helpers)
        tasks = [self._executor.submit(take_part) for _ in range(helpers)]
        try:
            work()
        finally:
            # A helper that has not begun would find nothing left to compute.
            started = [task for task in tasks if not task.cancel()]
            self._count(len(started) - helpers)
            problems = [task.exception() for task in started]  # waits for each
        for problem in problems:
            if problem is not None:
                raise problem

    def close(self) -> None:
        """Ends the threads after their tasks; waiting tasks are dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, task: Callable[[], Result], done: Callable[[Result], None]) -> None:
        try:
            result = task()
        finally:
            self._count(-1)
        done(result)

    def _count(self, tasks: int) -> None:
        with self._lock:
            self._busy += tasks
