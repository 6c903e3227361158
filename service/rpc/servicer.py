"""Methods -> one engine call each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from service import logs
from service.engine.desk import Desk
from service.engine.requests import Call
from service.errors import BODIES, Overloaded
from service.rpc import convert
from service.rpc.transport.streams import Method, Reply, Stream
from service.security.callers import Caller, enter, require_all_models, require_permission
from service.wire import signatures
from service.wire.calls import REQUEST_ID, TRACE_PARENT, request_id_of
from service.wire.decoding import decoded
from service.wire.failures import failure_of, log_failure
from service.wire.operations import OPERATIONS, Operation, Written
from service.wire.stubs import embedding_service_pb2 as pb
from service.wire.timings import SERVER_TIMING, timing_of

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name
Answer = Callable[[bytes, Call], Awaitable[Written]]
"""A message's raw bytes and who asks -> the answer's message."""

_LOG = logs.logger(__name__)
_REQUEST_ID, _TRACE_PARENT = REQUEST_ID.encode(), TRACE_PARENT.encode()


def methods_of(desk: Desk) -> dict[bytes, Method]:
    """Returns every method of the service by path."""
    answers: dict[str, tuple[str, Answer]] = {
        "ListModels": ("models", _models(desk)),
        "GetModel": ("model", _model(desk)),
    }
    for operation in OPERATIONS.values():
        answers[operation.method] = (operation.name, _hot_call(desk, operation))
    return {
        f"/{SERVICE}/{method}".encode(): Method(
            _guarded(desk, name, answer), check=token_check(desk), refused=_refusal(desk, name)
        )
        for method, (name, answer) in answers.items()
    }


def token_check(desk: Desk) -> Callable[[Mapping[bytes, bytes]], Caller] | None:
    """Returns what finds out whose token a call carries, or refuses it; None: none is asked for."""
    tokens = desk.guards.tokens
    return None if tokens is None else lambda metadata: tokens.caller(metadata.get(b"authorization"))


def _hot_call(desk: Desk, operation: Operation) -> Answer:
    ask: Callable[[Any, Call], Awaitable[Any]] = getattr(desk.engine, operation.name)

    def read_message(body: bytes) -> Any:
        return operation.read_message(body, None)

    async def answer(body: bytes, call: Call) -> Written:
        with desk.engine.enter(operation.name, call.deadline):
            started = time.perf_counter()
            request = await decoded(len(body), read_message, body)
            _took(desk, call, operation.name, "decode", started)
            require_permission(request.target.model)
            answered = await ask(request, call)
            started = time.perf_counter()
            message = operation.write_message(answered)
            _took(desk, call, operation.name, "encode", started)
            desk.answered(operation.name, request.target, answered.model, True, body)
            return message

    return answer


def _models(desk: Desk) -> Answer:
    async def answer(body: bytes, _: Call) -> Written:
        signatures.read_models(body)
        require_all_models()
        return signatures.models_message(await desk.models())

    return answer


def _model(desk: Desk) -> Answer:
    async def answer(body: bytes, _: Call) -> Written:
        target = signatures.read_details(body)
        require_permission(target.model)
        return signatures.details_message(desk.engine.model(target))

    return answer


def _guarded(desk: Desk, name: str, answer: Answer) -> Callable[[Stream], Awaitable[Reply]]:
    """Wraps a method so that nothing leaves it but an answer or a failure of the one table."""

    caller_of = token_check(desk)

    async def method(stream: Stream) -> Reply:
        started, code = time.perf_counter(), "OK"
        metadata = stream.metadata
        request_id = request_id_of(_text(metadata.get(_REQUEST_ID)), _text(metadata.get(_TRACE_PARENT)))
        call = Call(request_id, stream.deadline)
        try:
            if caller_of is not None:
                enter(caller_of(metadata))
            encoded = (await answer(await stream.message(), call)).SerializeToString()
        except (Exception, asyncio.CancelledError) as problem:
            failure = failure_of(problem, request_id)
            code = failure.code.value
            log_failure(_LOG, name, failure, problem)
            if isinstance(problem, Overloaded) and problem.reason == BODIES:  # the engine counts its own
                desk.metrics.shed(name, problem.reason)
            if isinstance(problem, asyncio.CancelledError):
                raise
            return convert.refusal(failure, _timing(call.phases))
        finally:
            desk.metrics.answered("grpc", name, code, time.perf_counter() - started)
        return Reply(encoded, metadata=((REQUEST_ID, request_id), *_timing(call.phases)))

    return method


def _refusal(desk: Desk, name: str) -> Callable[[Stream], Reply | None] | None:
    """Returns what refuses calls that there is no room for, before there is a task for them."""
    if name not in OPERATIONS:
        return None
    engine = desk.engine

    def refused(stream: Stream) -> Reply | None:
        told = engine.refusal(name, stream.deadline) if engine.crowded else None
        if told is None:
            engine.comes()
            return None
        metadata = stream.metadata
        request_id = request_id_of(_text(metadata.get(_REQUEST_ID)), _text(metadata.get(_TRACE_PARENT)))
        failure = failure_of(told, request_id)
        desk.metrics.answered("grpc", name, failure.code.value, 0.0)
        return convert.refusal(failure)

    return refused


def _took(desk: Desk, call: Call, name: str, phase: str, began: float) -> None:
    seconds = call.phases[phase] = time.perf_counter() - began
    desk.metrics.phase(name, phase, seconds)


def _timing(phases: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    return ((SERVER_TIMING, timing_of(phases)),) if phases else ()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
