"""One request of another protocol and the response to it, over the data plane of all calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from service.codec.protobuf import request_message
from service.config import ServiceSettings
from service.contract import messages
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.protocols.binding import BoundRequest, SentTensors, bind, tensor_errors, tensors_of
from service.protocols.signatures import Signature
from service.security.principal import authorize
from tensors.arrays import Arrays

COMPUTED = ("embed", "rank", "retrieve")
"""The calls of the engine that compute signatures."""


class ReturnedTensors(NamedTuple):
    """The response to a client.

    Attributes:
      model: The name of the model.
      version: The version that has computed it.
      signature: The signature that was called.
      arrays: The outputs that the client requested, in the order of the request, or all of the
        signature in its order.
    """

    model: str
    version: int
    signature: Signature
    arrays: Arrays


class CallForm(NamedTuple):
    """The form of a call in a protocol.

    Attributes:
      read: Reads the body of a request; the target is that of its URL, if there is one.
      write: Writes the body of a response; also takes `SentTensors.form` of its request.
      model_of: Returns the model that a body without a URL names, as far as it can be found before
        the body is parsed; else "".
      computed: The calls of the engine whose results the call can return.
    """

    read: Callable[[bytes, messages.Target | None, ServiceSettings], SentTensors]
    write: Callable[[ReturnedTensors, Any], bytes]
    model_of: Callable[[bytes], str] = lambda _: ""
    computed: Collection[str] = COMPUTED


class TensorExchange:
    """One request of a protocol and the response to it: the Exchange that `Dataplane.call` reads
    and writes.

    Attributes:
      name: The name of the call, as in metrics.
      model_of: See CallForm.
    """

    def __init__(self, context: RequestContext, engine: Engine, form: CallForm) -> None:
        """Creates the exchange of one request.

        Args:
          context: The context of the request.
          engine: Has the versions whose signatures requests name.
          form: The form of the call.
        """
        self.name = context.call
        self.model_of = form.model_of
        self._context = context
        self._engine = engine
        self._form = form
        self._sent_form: Any
        self._bound: BoundRequest

    def read(
        self, body: bytes, is_protobuf: bool, url: messages.Target | None, settings: ServiceSettings
    ) -> tuple[messages.Request, bool]:
        """Returns the request that a body holds; see `Operation.read`."""
        # The protocol's own reader knows the form.
        del is_protobuf
        with tensor_errors():
            tensors = self._form.read(body, url, settings)
            # Its model may not have been known before it was parsed. An error about its signature
            # would describe a model that the client may not use.
            authorize(self._context.principal, tensors.target.model)
            deadline = time.monotonic() + tensors.timeout_s
            self._context.deadline = min(self._context.deadline, deadline)
            with self._engine.lease(tensors.target) as version:
                self._bound = bind(version, tensors, self.name, self._form.computed, settings)
        self._sent_form = tensors.form
        return self._bound.request, False

    def write(self, result: messages.Result) -> bytes:
        """Returns the body of the response.

        Raises:
          ServiceError: A row of the request has no result.
        """
        arrays = tensors_of(self._bound, result)
        signature = self._bound.signature
        returned = ReturnedTensors(result.model, result.version, signature, arrays)
        return self._form.write(returned, self._sent_form)

    def recorded(
        self, request: messages.Request, is_protobuf: bool, body: bytes
    ) -> tuple[str, bool, bytes]:
        """Returns what the request log stores; see `Operation.recorded`."""
        # As a request of the contract: the replay needs no other protocol.
        del is_protobuf, body
        return self._bound.signature.call, True, request_message(request).SerializeToString()
