"""Threads for calls that wait for a disk, a lock or another process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from service.errors import DeadlineExceeded, NotReady, Overloaded

AFTER_DEADLINE_S = 1.0
"""Time after its deadline in which a call that changes something reports whether it did. What has
begun by then mostly ends within milliseconds; a disk that hangs must not hold the client.
"""

Returned = TypeVar("Returned")


class Permit:
    """A free thread of a pool, for one call."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        """Creates the permit to make a call in a thread of an executor."""
        self._executor = executor
        self._call: Future[Any] | None = None

    async def run(self, function: Callable[[], Returned], deadline: float) -> Returned:
        """Calls a function in the thread.

        A call that has not begun by the deadline is never made. Nothing can interrupt one that has
        begun: it keeps its thread, and nobody waits for its result.

        Args:
          function: What is called.
          deadline: The deadline, on the clock of `time.monotonic()`.

        Raises:
          DeadlineExceeded: The call has not ended by the deadline.
          Exception: Whatever the function raises.
        """
        # What is logged in the thread names the principal, too.
        call = self._executor.submit(copy_context().run, function)
        self._call = call
        result = asyncio.wrap_future(call)
        try:
            await asyncio.wait({result}, timeout=max(0.0, deadline - time.monotonic()))
            if not result.done():
                raise DeadlineExceeded(
                    "a disk, a lock or another process was waited for until the deadline"
                )
            return result.result()
        finally:
            result.cancel()

    def release_after_call(self, release: Callable[[], None]) -> None:
        """Calls `release` once no thread works for this permit."""
        if self._call is None:
            release()
        else:
            self._call.add_done_callback(lambda _: release())


class BoundedPool:
    """Threads for calls of one kind, each of which waits for a disk, a lock or another process.

    Calls of another kind do not wait behind them, and no call waits for a thread: one beyond the
    maximum is rejected. Safe for any number of threads and event loops.
    """

    def __init__(
        self,
        name: str,
        calls_max: int,
        calls_max_per_owner: int | None = None,
        retry_after_s: float = 1.0,
        on_rejection: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Creates a pool; its threads start when they are needed.

        Args:
          name: The name of the calls, in the plural.
          calls_max: The maximum number of calls in progress.
          calls_max_per_owner: The maximum number of calls in progress that wait for the same thing,
            such as the lock of one model; None: no less than `calls_max`.
          retry_after_s: The time after which a rejected client may try again.
          on_rejection: Called with the owner of a rejected call.
        """
        self._name = name
        self._calls_max = calls_max
        self._calls_max_per_owner = calls_max_per_owner or calls_max
        self._retry_after_s = retry_after_s
        self._on_rejection = on_rejection
        self._executor = ThreadPoolExecutor(calls_max, f"rowcast-{name}")
        self._is_closed = False
        self._lock = threading.Lock()
        self._calls_by_owner = Counter[str]()

    @property
    def calls(self) -> int:
        """The number of calls in progress, with those for which nobody waits any more."""
        with self._lock:
            return self._calls_by_owner.total()

    def check(self, owner: str = "") -> None:
        """Raises Overloaded if there is no room for a call; see `admit`."""
        with self._lock:
            self._check(owner)

    @contextmanager
    def admit(self, owner: str = "") -> Iterator[Permit]:
        """Counts a call as one in progress until it ends, and its thread with it.

        Args:
          owner: What the call waits for.

        Raises:
          Overloaded: Too many calls are in progress.
          NotReady: The pool is closed.
        """
        with self._lock:
            self._check(owner)
            self._calls_by_owner[owner] += 1
        permit = Permit(self._executor)
        try:
            yield permit
        finally:
            permit.release_after_call(lambda: self._release(owner))

    async def run(
        self, function: Callable[[], Returned], deadline: float, owner: str = ""
    ) -> Returned:
        """Calls a function in a thread; see `admit` and `Permit.run`.

        Raises:
          Overloaded: Too many calls are in progress.
          DeadlineExceeded: The call has not ended by the deadline.
          Exception: Whatever the function raises.
        """
        with self.admit(owner) as permit:
            return await permit.run(function, deadline)

    def close(self) -> None:
        """Ends the threads that wait for nothing, and rejects further calls."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _check(self, owner: str) -> None:
        if self._is_closed:
            raise NotReady("the service is shutting down")
        is_full = self._calls_by_owner.total() >= self._calls_max
        if is_full or self._calls_by_owner[owner] >= self._calls_max_per_owner:
            self._on_rejection(owner)
            raise Overloaded(
                f"too many {self._name} are in progress",
                self._retry_after_s,
                "requests",
            )

    def _release(self, owner: str) -> None:
        with self._lock:
            self._calls_by_owner[owner] -= 1
            # Clients choose the names of owners.
            if not self._calls_by_owner[owner]:
                del self._calls_by_owner[owner]
