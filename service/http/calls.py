"""The five calls over HTTP, whose bodies are bytes."""

from __future__ import annotations

import time

from starlette.types import Receive, Scope, Send

from service.codec.metadata import TIMEOUT_MS, timeout_s_of
from service.codec.operations import OPERATIONS
from service.dataplane import Dataplane
from service.engine.calls import Target
from service.engine.context import RequestContext
from service.errors import InvalidArgument, NotFound
from service.http.body import (
    JSON,
    PROTOBUF,
    BodyReader,
    accepts_protobuf,
    is_protobuf,
    is_unusual,
    send_pieces,
)
from service.http.errors import MethodNotAllowed
from service.security.principal import authorize

_JSON = JSON.encode()
_PROTOBUF = PROTOBUF.encode()


def target_of(model: str, version: str | None = None, label: str | None = None) -> Target:
    """Returns the model, and the version or label, that a path names.

    Raises:
      InvalidArgument: the version is not a number.
    """
    if version is None:
        return Target(model, label=label or "")
    if not (version.isascii() and version.isdecimal() and len(version) < 20):
        raise InvalidArgument(f"version is {version[:40]!r}; a positive integer was expected")
    return Target(model, int(version))


class CallEndpoint:
    """Answers the five calls, as an ASGI application. The scope's `path_params` have the model and
    the call, and the version or label if the path names one.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane
        self._timeout_s = dataplane.settings.body_timeout_s
        self._bodies = BodyReader(dataplane)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = scope["path_params"]
        headers = scope["state"]["headers"]
        context: RequestContext = scope["state"]["context"]
        if path["call"] not in OPERATIONS:
            raise NotFound(
                f"call {path['call'][:40]!r} does not exist; the calls are {', '.join(OPERATIONS)}"
            )
        operation = OPERATIONS[path["call"]]
        context.call = operation.name
        context.model = path["model"]
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], "POST")
        target = target_of(path["model"], path["version"], path["label"])
        protobuf = is_protobuf(headers)
        as_protobuf = accepts_protobuf(headers)
        if TIMEOUT_MS in headers:
            timeout_s = timeout_s_of(headers[TIMEOUT_MS])
            context.deadline = min(context.deadline, time.monotonic() + timeout_s)
        authorize(context.principal, target.model)
        if is_unusual(headers):  # the admission in front of the application has looked at others
            engine = self._dataplane.engine
            engine.check_admission(context.call, context.deadline, target.model)

        async def disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        try:
            body = await self._bodies.read(context, headers, scope["headers"], receive)
            context.received_at = time.monotonic()
            context.disconnected = disconnected
            pieces = await self._dataplane.call(
                operation, body, protobuf, target, context, as_protobuf
            )
            media_type = _PROTOBUF if as_protobuf else _JSON
            await send_pieces(pieces, media_type, self._timeout_s, send)
        finally:
            self._dataplane.budget.release(context)
