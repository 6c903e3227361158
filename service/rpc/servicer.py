"""Methods -> one engine call each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from service.engine.desk import Desk
from service.errors import Unimplemented
from service.rpc import convert
from service.rpc.hot_calls import HotCall, HotMethod, failed, request_id_in
from service.rpc.transport.streams import Method, Reply, Stream
from service.security.callers import Caller, require_all_models, require_permission
from service.wire import signatures
from service.wire.calls import REQUEST_ID
from service.wire.operations import OPERATIONS, Written
from service.wire.stubs import embedding_service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name
Answer = Callable[[bytes], Awaitable[Written]]
"""A message's raw bytes -> the answer's message."""


def methods_of(desk: Desk) -> dict[bytes, Method]:
    """Returns every method of the service by path."""
    check = token_check(desk)
    methods = {
        "ListModels": Method(_guarded(desk, "models", _models(desk)), check=check),
        "GetModel": Method(_guarded(desk, "model", _model(desk)), check=check),
    }
    for operation in OPERATIONS.values():
        methods[operation.method] = Method(check=check, work=partial(HotCall, HotMethod(desk, operation)))
    return {f"/{SERVICE}/{name}".encode(): method for name, method in methods.items()}


def token_check(desk: Desk) -> Callable[[Mapping[bytes, bytes]], Caller] | None:
    """Returns what finds out whose token a call carries, or refuses it; None: none is asked for."""
    tokens = desk.guards.tokens
    return None if tokens is None else lambda metadata: tokens.caller(metadata.get(b"authorization"))


def unknown_method(desk: Desk) -> Method:
    """Returns what answers where there is no method."""

    async def answer(stream: Stream) -> Reply:
        path = stream.metadata.get(b":path", b"").decode("latin-1")
        problem = Unimplemented(f"method {path[:80]!r} is not there; the methods are those of {SERVICE}")
        failure = failed(desk, "other", request_id_in(stream.metadata), problem)
        desk.metrics.answered("grpc", "other", failure.code.value, 0.0)
        return convert.refusal(failure)

    return Method(answer, at_once=True)


def _models(desk: Desk) -> Answer:
    async def answer(body: bytes) -> Written:
        signatures.read_models(body)
        require_all_models()
        return signatures.models_message(await desk.models())

    return answer


def _model(desk: Desk) -> Answer:
    async def answer(body: bytes) -> Written:
        target = signatures.read_details(body)
        require_permission(target.model)
        return signatures.details_message(desk.engine.model(target))

    return answer


def _guarded(desk: Desk, name: str, answer: Answer) -> Callable[[Stream], Awaitable[Reply]]:
    """Wraps a method so that nothing leaves it but an answer or a failure of the one table."""

    async def method(stream: Stream) -> Reply:
        started, code = time.perf_counter(), "OK"
        request_id = request_id_in(stream.metadata)
        try:
            encoded = (await answer(await stream.message())).SerializeToString()
        except (Exception, asyncio.CancelledError) as problem:
            failure = failed(desk, name, request_id, problem)
            code = failure.code.value
            if isinstance(problem, asyncio.CancelledError):
                raise
            return convert.refusal(failure)
        finally:
            desk.metrics.answered("grpc", name, code, time.perf_counter() - started)
        return Reply(encoded, metadata=((REQUEST_ID, request_id),))

    return method
