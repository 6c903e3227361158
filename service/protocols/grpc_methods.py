"""Services of other protocols over gRPC, as tables of their methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message

from service.codec import protobuf
from service.codec.message_fields import model_of
from service.config import ServiceSettings
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import Unimplemented
from service.grpc_api.descriptions import MethodMessages
from service.grpc_api.servicer import GrpcService
from service.protocols.binding import SentTensors
from service.protocols.exchange import COMPUTED, CallForm, TensorExchange

Respond = Callable[[Dataplane, bytes, RequestContext], Awaitable[bytes]]
"""Returns the serialized response to a message that `CallInterceptor` has authenticated, admitted
and read.
"""


class Method(NamedTuple):
    """A method of a service.

    Attributes:
      call: The name of its call, as in metrics.
      respond: Responds to its messages.
      request: The class of the messages that clients send; None: the method rejects all of them.
      response: The class of the messages that it returns.
    """

    call: str
    respond: Respond
    request: type[Message] | None = None
    response: type[Message] | None = None


def grpc_service(name: str, methods: Mapping[str, Method]) -> GrpcService:
    """Returns the service with a full name that has these methods."""

    def register(dataplane: Dataplane, server: Any) -> None:
        # A generated function would register the service under the name of rowcast's own package.
        handlers = {
            method_name: grpc.unary_unary_rpc_method_handler(partial(method.respond, dataplane))
            for method_name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    messages = {}
    for method_name, method in methods.items():
        if method.request is not None and method.response is not None:
            messages[method_name] = MethodMessages.of(method.request, method.response)
    calls = {method_name: method.call for method_name, method in methods.items()}
    return GrpcService(name, calls, register, messages)


def tensor_method(
    call: str,
    request: type[Message],
    response: type[Message],
    read: Callable[[Any, ServiceSettings], SentTensors],
    write: Callable[..., Message],
    computed: Collection[str] = COMPUTED,
) -> Method:
    """Returns a method that computes a signature.

    Args:
      call: See Method.
      request: See Method.
      response: See Method.
      read: Reads a parsed message.
      write: Returns the message of a response; see CallForm.
      computed: See CallForm.
    """

    def read_body(body: bytes, _: Target | None, settings: ServiceSettings) -> SentTensors:
        # What a message would build is counted before the parser allocates it.
        protobuf.check_size(request, body, settings)
        return read(protobuf.parse(request, body), settings)

    form = CallForm(
        read_body,
        lambda returned, sent_form: write(returned, sent_form).SerializeToString(),
        partial(model_of, request.DESCRIPTOR),
        computed,
    )

    async def respond(dataplane: Dataplane, message: bytes, context: RequestContext) -> bytes:
        exchange = TensorExchange(context, dataplane.engine, form)
        (body,) = await dataplane.call(exchange, message, True, None, context)
        return body

    return Method(call, respond, request, response)


def rejecting_method(remedy: str) -> Method:
    """Returns a method that rejects every message, with a remedy."""

    async def respond(_: Dataplane, __: bytes, ___: RequestContext) -> bytes:
        raise Unimplemented(f"the service does not have this method; {remedy}")

    return Method("other", respond)
