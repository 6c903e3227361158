"""Methods -> one engine call each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from service import logs
from service.engine.desk import Desk
from service.engine.requests import Call
from service.rpc import convert
from service.wire import signatures
from service.wire.calls import REQUEST_ID, TRACE_PARENT, call_of, request_id_of
from service.wire.decoding import decoded
from service.wire.failures import failure_of, log_failure
from service.wire.operations import OPERATIONS, Operation, Written
from service.wire.stubs import embedding_service_pb2 as pb
from service.wire.timings import SERVER_TIMING, timing_of

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name
Answer = Callable[[bytes, Call], Awaitable[Written]]
"""A message's raw bytes and who asks -> the answer's message."""

_LOG = logs.logger(__name__)


def handlers_of(desk: Desk) -> grpc.GenericRpcHandler:
    """Returns the handlers of every method of the service. They take and return raw bytes."""
    answers: dict[str, tuple[str, Answer]] = {
        "ListModels": ("models", _models(desk)),
        "GetModel": ("model", _model(desk)),
    }
    for operation in OPERATIONS.values():
        answers[operation.method] = (operation.name, _hot_call(desk, operation))
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            method: grpc.unary_unary_rpc_method_handler(_guarded(desk, name, answer))
            for method, (name, answer) in answers.items()
        },
    )


def _hot_call(desk: Desk, operation: Operation) -> Answer:
    ask: Callable[[Any, Call], Awaitable[Any]] = getattr(desk.engine, operation.name)

    def read_message(body: bytes) -> Any:
        return operation.read_message(body, None)

    async def answer(body: bytes, call: Call) -> Written:
        with desk.engine.enter():
            started = time.perf_counter()
            request = await decoded(len(body), convert.read, body, read_message, desk.settings.body_bytes_max)
            _took(desk, call, operation.name, "decode", started)
            answered = await ask(request, call)
            started = time.perf_counter()
            message = operation.write_message(answered)
            _took(desk, call, operation.name, "encode", started)
            return message

    return answer


def _models(desk: Desk) -> Answer:
    async def answer(body: bytes, _: Call) -> Written:
        convert.read(body, signatures.read_models, desk.settings.body_bytes_max)
        return signatures.models_message(desk.engine.models())

    return answer


def _model(desk: Desk) -> Answer:
    async def answer(body: bytes, _: Call) -> Written:
        target = convert.read(body, signatures.read_details, desk.settings.body_bytes_max)
        return signatures.details_message(desk.engine.model(target))

    return answer


def _guarded(desk: Desk, name: str, answer: Answer) -> Callable[[bytes, Any], Awaitable[bytes]]:
    """Wraps a method so that nothing leaves it but an answer or a failure of the one table."""

    async def method(body: bytes, context: Any) -> bytes:
        started, code, failure = time.perf_counter(), "OK", None
        metadata = dict(context.invocation_metadata() or ())
        request_id = request_id_of(_text(metadata.get(REQUEST_ID)), _text(metadata.get(TRACE_PARENT)))
        encoded = b""
        phases: dict[str, float] = {}
        try:
            call = call_of(request_id, context.time_remaining(), time.monotonic())
            phases = call.phases
            encoded = (await answer(body, call)).SerializeToString()
        except (Exception, asyncio.CancelledError) as problem:
            failure = failure_of(problem, request_id)
            code = failure.code.value
            log_failure(_LOG, name, failure, problem)
            if isinstance(problem, asyncio.CancelledError):
                raise
        finally:
            desk.metrics.answered("grpc", name, code, time.perf_counter() - started)
        if failure is not None:
            trailer = (*convert.trailer_of(failure), *_timing(phases))
            await context.abort(convert.status_of(failure), failure.message, trailer)
        context.set_trailing_metadata(((REQUEST_ID, request_id), *_timing(phases)))
        return encoded

    return method


def _took(desk: Desk, call: Call, name: str, phase: str, began: float) -> None:
    seconds = call.phases[phase] = time.perf_counter() - began
    desk.metrics.phase(name, phase, seconds)


def _timing(phases: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    return ((SERVER_TIMING, timing_of(phases)),) if phases else ()


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
