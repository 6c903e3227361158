"""Turns to decompress and decode large bodies: one at a time, with pauses for everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

from service.decoding import DECODING
from service.engine.context import RequestContext
from service.observability import logging
from service.observability.metrics import Metrics

_PAUSE_FROM_S = 0.02
"""Time from which on decoding is followed by a pause. With less, bodies of medium size would wait
for each other; with more, they could silence the event loop.
"""
_LONG_S = 5.0
"""Time after which a turn is logged. At the default limits none takes more than about 2 s, since
what a request has too much of is counted before it is read.
"""

Returned = TypeVar("Returned")
_log = logging.logger(__name__)


class DecodeTurns:
    """Has large bodies decompressed and decoded one after the other. Belongs to one event loop.

    A parser holds Python's lock (GIL) until it is done, up to half a second at the limits. Without
    the pause a few large bodies would silence the event loop for seconds. What a body becomes takes
    many times its memory, which only one body at a time may do.
    """

    def __init__(self, threads: Executor) -> None:
        """Creates turns of which none is taken; the work of each runs in `threads`."""
        self._threads = threads
        self._lock = asyncio.Lock()
        self._began: float | None = None
        self._work: asyncio.Future[Any] | None = None
        self._is_logged = False

    async def take(self, context: RequestContext) -> None:
        """Waits until no other request has a turn. A request keeps its turn until it leaves it, so
        that a body that was decompressed is decoded next.

        Raises:
          DeadlineExceeded: The deadline passed before.
          Cancelled: The client hung up before.
        """
        if context.has_turn:
            return
        await self._wait(context)
        context.has_turn = True
        self._began = time.perf_counter()
        self._is_logged = False

    async def run(
        self, context: RequestContext, function: Callable[..., Returned], *args: Any
    ) -> Returned:
        """Runs a function in a thread, in the turn of a request. Its steps look at the request
        (`service/decoding.py`).

        Raises:
          DeadlineExceeded: The deadline has passed.
          Cancelled: Nobody waits for the response any more.
        """
        context.check()
        snapshot = copy_context()
        snapshot.run(DECODING.set, context.check)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, snapshot.run, function, *args)
        self._work = work
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A thread cannot be stopped: it looks at the request between its steps.
            context.cancelled = True
            work.add_done_callback(asyncio.Future.exception)
            raise
        finally:
            # An error of the thread refers to this frame, and with it to the body. If the frame
            # referred to the error, both would stay until the next garbage collection.
            del work

    def leave(self, context: RequestContext) -> None:
        """Ends the turn of a request, as soon as no thread works for it."""
        context.has_turn = False
        if self._work is None or self._work.done():
            self._end()
        else:
            self._work.add_done_callback(lambda _: self._end())

    def report(self, metrics: Metrics) -> None:
        """Sets the metric of the turn in progress, and logs it once if it takes long."""
        age_s = 0.0
        if self._began is not None:
            age_s = time.perf_counter() - self._began
        metrics.set("decode_turn_seconds", age_s)
        if age_s > _LONG_S and not self._is_logged:
            self._is_logged = True
            _log.warning("decode_turn_long", extra=logging.fields(seconds=round(age_s, 1)))

    def _end(self) -> None:
        assert self._began is not None  # noqa: S101 - a turn began
        # As long as the body took, so that the event loop has at least half of the time.
        decoding_s = time.perf_counter() - self._began
        pause_s = 0.0
        if decoding_s > _PAUSE_FROM_S:
            pause_s = decoding_s
        self._began = None
        self._work = None
        asyncio.get_running_loop().call_later(pause_s, self._lock.release)

    async def _wait(self, context: RequestContext) -> None:
        # Without a wait, a turn costs no task.
        if not self._lock.locked():
            await self._lock.acquire()
            return

        # The wait ends with the turn, the deadline, or the end of the connection.
        acquired: asyncio.Future[Any] = asyncio.ensure_future(self._lock.acquire())
        waits: set[asyncio.Future[Any]] = {acquired}
        if context.disconnected is not None:
            waits.add(asyncio.ensure_future(context.disconnected()))
        try:
            while not acquired.done():
                remaining_s = max(0.0, context.deadline - time.monotonic())
                ended, _ = await asyncio.wait(
                    waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
                )
                context.cancelled = context.cancelled or bool(ended - {acquired})
                context.check()
        except BaseException:
            # The lock may be acquired before the cancellation arrives: nobody would release it.
            acquired.add_done_callback(self._release_late)
            raise
        finally:
            for wait in waits:
                wait.cancel()

    def _release_late(self, acquired: asyncio.Future[Any]) -> None:
        """Passes a turn on that came after its request had ended."""
        if not acquired.cancelled():
            self._lock.release()
