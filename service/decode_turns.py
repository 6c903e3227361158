"""Turns to decode large bodies: one at a time, with pauses for everything else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from service.engine.context import RequestContext

_PAUSE_FROM_S = 0.02
"""Time from which on decoding is followed by a pause. With less, bodies of medium size would wait
for each other; with more, they could silence the event loop.
"""


class DecodeTurns:
    """Has large bodies decoded one after the other. Belongs to one event loop.

    A parser holds Python's lock (GIL) until it is done, up to half a second at the limits. Without
    the pause a few large bodies would silence the event loop for seconds.
    """

    def __init__(self) -> None:
        """Creates turns of which none is taken."""
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self, context: RequestContext) -> AsyncIterator[None]:
        """Waits until no other large body is decoded, and makes the next one wait as long again.

        Raises:
          DeadlineExceeded: The deadline passed before.
          Cancelled: The client hung up before.
        """
        await self._wait(context)
        began = time.perf_counter()
        try:
            context.check()
            yield
        finally:
            # As long as the body took, so that the event loop has at least half of the time.
            decoding_s = time.perf_counter() - began
            pause_s = 0.0
            if decoding_s > _PAUSE_FROM_S:
                pause_s = decoding_s
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
