"""The calls that are many: from a whole request to the engine and back without a task, each in two turns of the loop.

Figures and reasons in docs/adr/0012.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import Context, copy_context
from typing import Any

from service import logs
from service.engine.admission import Permit
from service.engine.desk import Desk
from service.engine.jobs import Job
from service.engine.requests import Call
from service.errors import BODIES, Overloaded, ServiceError
from service.rpc import convert
from service.rpc.transport.frames import field
from service.rpc.transport.messages import OK
from service.rpc.transport.streams import Finish, Stream
from service.security.callers import enter, require_permission
from service.wire.calls import REQUEST_ID, TRACE_PARENT, request_id_of
from service.wire.decoding import AT_ONCE_BYTES_MAX, decoded
from service.wire.failures import Failure, failure_of, log_failure
from service.wire.operations import Operation
from service.wire.timings import SERVER_TIMING, timing_of

_LOG = logs.logger(__name__)
_REQUEST_ID, _TRACE_PARENT, _SERVER_TIMING = REQUEST_ID.encode(), TRACE_PARENT.encode(), SERVER_TIMING.encode()


class HotMethod:
    """One call of the contract at a desk: what all of its calls share."""

    __slots__ = ("desk", "engine", "metrics", "name", "read", "write")

    def __init__(self, desk: Desk, operation: Operation) -> None:
        """Takes whose calls they are, and which."""
        self.desk, self.engine, self.metrics = desk, desk.engine, desk.metrics
        self.name, self.read, self.write = operation.name, operation.read_message, operation.write_message


class HotCall:
    """One call: the `Work` of its stream."""

    __slots__ = (
        *("_body", "_call", "_context", "_finish", "_method", "_permit", "_reading", "_started", "_stream", "_target"),
        "_waiting",
    )

    def __init__(self, method: HotMethod, stream: Stream, finish: Finish) -> None:
        """Takes a stream whose request is whole, and what ends it."""
        self._method, self._stream, self._finish = method, stream, finish
        self._started = time.perf_counter()
        self._call = Call(request_id_in(stream.metadata), stream.deadline)
        self._permit: Permit | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: Job[Any, Any] | None = None
        self._context: Context | None = None
        if stream.caller is not None:
            self._context = copy_context()
            self._context.run(enter, stream.caller)

    def begin(self) -> None:
        """Asks the engine; what is large is read in a thread first."""
        if self._context is None:
            self._begin()
        else:
            self._context.run(self._begin)

    def cancel(self) -> None:
        """Ends the call: nobody waits for it any more, or the service does not."""
        if self._waiting is not None:
            self._waiting.give_up()
            self._waiting = None
        elif self._reading is not None:
            self._reading.cancel()
        if self._context is None:
            self._failed(asyncio.CancelledError())
        else:
            self._context.run(self._failed, asyncio.CancelledError())

    def _begin(self) -> None:
        method = self._method
        try:
            body = self._stream.message_now()
            if body is None or len(body) > AT_ONCE_BYTES_MAX:
                self._reading = asyncio.get_running_loop().create_task(self._read())
                return
            self._permit = method.engine.enter(method.name, self._call.deadline)
            began = time.perf_counter()
            self._ask(body, method.read(body, None), began)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the caller is told in the same way
            self._refuse(problem)

    async def _read(self) -> None:
        method = self._method
        try:
            body = await self._stream.message()
            self._permit = method.engine.enter(method.name, self._call.deadline)
            began = time.perf_counter()
            self._ask(body, await decoded(len(body), method.read, body, None), began)
        except Exception as problem:  # noqa: BLE001 - as above
            self._refuse(problem)

    def _ask(self, body: bytes, request: Any, began: float) -> None:
        self._took("decode", began)
        self._body, self._target = body, request.target
        require_permission(self._target.model)
        self._waiting = self._method.engine.start(self._method.name, request, self._call, self._told)

    def _told(self, outcome: Any) -> None:
        self._waiting = None  # which holds on to the version that answered
        if self._context is None:
            self._answer(outcome)
        else:
            self._context.run(self._answer, outcome)

    def _answer(self, outcome: Any) -> None:
        """Sends the answer, or why there is none."""
        if isinstance(outcome, ServiceError):
            self._refuse(outcome)
            return
        method, call = self._method, self._call
        try:
            began = time.perf_counter()
            message = method.write(outcome)
            self._took("encode", began)
            method.desk.answered(method.name, self._target, outcome.model, True, self._body)
            encoded = message.SerializeToString()
        except Exception as problem:  # noqa: BLE001 - as above
            self._refuse(problem)
            return
        self._over("OK")
        timing = field(_SERVER_TIMING, timing_of(call.phases).encode())
        self._finish(self._stream, encoded, b"%b%b%b" % (OK, field(_REQUEST_ID, call.request_id.encode()), timing))

    def _refuse(self, problem: Exception) -> None:
        phases = self._call.phases
        failure = self._failed(problem)
        reply = convert.refusal(failure, ((SERVER_TIMING, timing_of(phases)),) if phases else ())
        self._finish(self._stream, None, reply.block)

    def _failed(self, problem: BaseException) -> Failure:
        failure = failed(self._method.desk, self._method.name, self._call.request_id, problem)
        self._over(failure.code.value)
        return failure

    def _over(self, code: str) -> None:
        if self._permit is not None:
            self._permit.release()
        method = self._method
        method.metrics.answered("grpc", method.name, code, time.perf_counter() - self._started)

    def _took(self, phase: str, began: float) -> None:
        seconds = self._call.phases[phase] = time.perf_counter() - began
        self._method.metrics.phase(self._method.name, phase, seconds)


def failed(desk: Desk, name: str, request_id: str, problem: BaseException) -> Failure:
    """Returns what the caller of a failed call is told, and tells the log."""
    failure = failure_of(problem, request_id)
    log_failure(_LOG, name, failure, problem)
    if isinstance(problem, Overloaded) and problem.reason == BODIES:  # the engine counts its own
        desk.metrics.shed(name, problem.reason)
    return failure


def request_id_in(metadata: Mapping[bytes, bytes]) -> str:
    """Returns the id of a call with these headers."""
    return request_id_of(_text(metadata.get(_REQUEST_ID)), _text(metadata.get(_TRACE_PARENT)))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
