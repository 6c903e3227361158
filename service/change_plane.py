"""The path of a change behind HTTP, gRPC and the admin API: permission, admission, bounded
decoding, and threads that wait for the changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from starlette.types import Message, Receive

from service.bounded_pool import AFTER_DEADLINE_S, BoundedPool
from service.changes.follower import Changes
from service.contract.changes import AppliedChanges, ChangeRequest, ChangeResult
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import NotReady
from service.security.principal import Principal, authorize_change

CHANGES_MAX = 128
"""Maximum number of changes in progress in one process. Those that wait for one file are written
together, so that each more costs little but its memory.
"""
CHANGES_OF_MODEL_MAX = 64
"""Maximum number of changes of one model in progress, so that a file whose lock is held leaves room
for the changes of other models.
"""
READS_MAX = 64
"""Maximum number of calls in progress that read the changes of a model."""
READS_OF_MODEL_MAX = 32
"""Maximum number of such calls for one model."""
Authorize = Callable[[Principal | None, str], object]
"""Raises if a client may not change a model."""
Returned = TypeVar("Returned")


class ChangePlane:
    """Decodes changes, and makes them in threads of their own, however they were sent.

    Attributes:
      changes: Makes the changes. Its methods block.
      dataplane: Decodes large bodies one after the other, and has the byte budget.
    """

    def __init__(self, changes: Changes, dataplane: Dataplane) -> None:
        """Creates the path of changes to `changes`, beside the calls of a data plane."""
        self.changes = changes
        self.dataplane = dataplane
        metrics = dataplane.metrics
        retry_after_s = dataplane.settings.retry_after_s
        self._pool = BoundedPool(
            "changes",
            CHANGES_MAX,
            CHANGES_OF_MODEL_MAX,
            retry_after_s,
            lambda model: metrics.call_rejected("change", model, "requests"),
        )
        self._read_pool = BoundedPool(
            "reads of changes",
            READS_MAX,
            READS_OF_MODEL_MAX,
            retry_after_s,
            lambda model: metrics.call_rejected("changes", model, "requests"),
        )
        self._serving_loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begins to make changes, on the event loop that runs now."""
        self._serving_loop = asyncio.get_running_loop()

    async def on_serving_loop(
        self, receive: Receive, respond: Callable[[Receive], Coroutine[Any, Any, Returned]]
    ) -> Returned:
        """Has a request responded to on the event loop of the service, which has the turns of
        decoding and the byte budget. The admin API runs on another one.

        Args:
          receive: Returns the next ASGI message of the request, on the event loop that runs now.
          respond: Responds to the request, with a `receive` for its own event loop.

        Raises:
          NotReady: The worker starts or stops.
          Exception: Whatever `respond` raises.
        """
        serving_loop = self._serving_loop
        loop = asyncio.get_running_loop()
        if serving_loop is loop:
            return await respond(receive)
        if serving_loop is None or serving_loop.is_closed():
            raise NotReady("the worker starts or stops")

        async def receive_elsewhere() -> Message:
            return await receive()

        async def receive_here() -> Message:
            return await _elsewhere(receive_elsewhere(), loop)

        return await _elsewhere(respond(receive_here), serving_loop)

    def authorize_client(self, principal: Principal | None, model: str) -> None:
        """Checks that a client of the public endpoints may change a model.

        Raises:
          PermissionDenied: It may not.
        """
        authorize_change(principal, model, self.dataplane.settings.changes_from)

    def check_room(self, model: str) -> None:
        """Checks that one more change can be in progress, before its body is read.

        Raises:
          Overloaded: Too many are in progress.
        """
        self._pool.check(model)

    async def change(
        self,
        read: Callable[[], tuple[Target, ChangeRequest]],
        size: int,
        authorize: Authorize,
        context: RequestContext,
    ) -> ChangeResult:
        """Makes a change. On the event loop of the service.

        After any error but a deadline or a client that left while the change was being written, the
        change was not made, and never will be.

        Args:
          read: Decodes the body; returns the model, and what to change.
          size: The number of bytes of the body, which the byte budget holds until this returns,
            with what it becomes.
          authorize: Checks the permission of the client.
          context: The context of the request, with the model as far as it is known.

        Raises:
          ServiceError: The change was rejected.
        """
        authorize(context.principal, context.model)
        with self._pool.admit(context.model) as permit:
            target, request = await self.dataplane.decode(read, size, context)
            # What could be read before decoding may be nothing. The decoded request decides.
            authorize(context.principal, target.model)
            withdrawal: Future[None] = Future()
            change = partial(self.changes.change, target, request, context.deadline, withdrawal)
            try:
                return await permit.run(change, context.deadline + AFTER_DEADLINE_S)
            finally:
                # Of no effect on a change that is made, or is being written.
                withdrawal.set_result(None)

    async def applied(self, context: RequestContext) -> AppliedChanges:
        """Returns what was changed so far of the model that a context names, to a client that may
        change it.

        Raises:
          ServiceError: The client may not, or the changes cannot be read in time.
        """
        self.authorize_client(context.principal, context.model)
        applied = partial(self.changes.applied, context.model, context.deadline)
        return await self.run(applied, context)

    async def run(self, function: Callable[[], Returned], context: RequestContext) -> Returned:
        """Calls a function that waits for the changes of a model, in a thread. The function
        itself ends at the deadline, unless a disk hangs.

        Raises:
          Overloaded: Too many such calls are in progress.
          DeadlineExceeded: The call has not ended by the deadline.
          Exception: Whatever the function raises.
        """
        deadline = context.deadline + AFTER_DEADLINE_S
        return await self._read_pool.run(function, deadline, context.model)

    @property
    def calls(self) -> int:
        """The number of threads that work or wait."""
        return self._pool.calls + self._read_pool.calls

    def close(self) -> None:
        """Ends the threads that wait for nothing."""
        self._pool.close()
        self._read_pool.close()


async def _elsewhere(
    call: Coroutine[Any, Any, Returned], loop: asyncio.AbstractEventLoop
) -> Returned:
    """Returns the result of a call on another event loop, which is cancelled with this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))
