"""The admin listener's application: one order or the status for each request, the errors of every other door."""

from __future__ import annotations

from importlib import metadata
from ipaddress import ip_address
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from service import logs
from service.control.control import Control
from service.control.orders import DOCUMENT_PATH, STATUS_PATH, Body, document, order_of
from service.errors import InvalidArgument, NotFound, PermissionDenied
from service.rest import schemas
from service.rest.bodies import Arrival, Intake, read_body
from service.rest.guard import send_reply, text_of
from service.rest.schemas import JSON, Headers, Reply
from service.security.callers import CALLER, enter, require_all_models, require_permission
from service.security.tokens import Tokens
from service.wire.calls import REQUEST_ID, TRACE_PARENT, request_id_of
from service.wire.failures import failure_of, log_failure

_LOG = logs.logger(__name__)
BODY_BYTES_MAX = 64 << 10
_BODIES_BYTES_MAX = 16 * BODY_BYTES_MAX
_BODY_S = 5.0


class AdminApp:
    """Answers an operator. No exception leaves it."""

    def __init__(self, control: Control, tokens: Tokens | None) -> None:
        """Prepares the application; tokens: of operators; None: whoever reaches it on this machine."""
        self._control, self._tokens = control, tokens
        self._intake = Intake(_BODIES_BYTES_MAX, 1.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        try:
            self._check(headers)
            reply = schemas.written(None, await self._answer(scope["method"], scope["path"], headers, receive))
        except Exception as problem:  # noqa: BLE001 - the door: nothing may leave it but an answer
            failure = failure_of(problem, request_id)
            log_failure(_LOG, "admin", failure, problem)
            reply = schemas.failed(failure, protobuf=False)
        reply = Reply(reply.status, reply.content_type, reply.body, (*reply.headers, (b"connection", b"close")))
        await send_reply(reply, request_id, send)

    def _check(self, headers: Headers) -> None:
        """Lets an operator in.

        Without tokens, only what names this machine in its `host`: a browser that was led here by a name of someone
        else's (DNS rebinding) does not.

        Raises:
          Unauthenticated, PermissionDenied: it is none.
        """
        if self._tokens is not None:
            enter(self._tokens.caller(headers.get(b"authorization")))
            return
        host = (text_of(headers, "host") or "").rpartition("@")[2]
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if name != "localhost" and not _is_loopback(name):
            raise PermissionDenied(f"host is {host[:80]!r}; an address of this machine itself was expected")

    async def _answer(self, method: str, path: str, headers: Headers, receive: Receive) -> Any:
        if method == "GET" and path == DOCUMENT_PATH:
            return document(metadata.version("rowcast"))
        if method == "GET" and path == STATUS_PATH:
            return await self._status()
        found = order_of(path) if method == "POST" else None
        if found is None:
            raise NotFound(f"{method[:20]} {path[:80]!r} is not there; {DOCUMENT_PATH} lists what is")
        order, model = found
        if order.of_model:
            require_permission(model)
        else:
            require_all_models()
        body = await self._body(headers, receive, order.body)
        await order.act(self._control, model, body)
        return await self._status()

    async def _status(self) -> dict[str, Any]:
        """The status, of the models that the operator may ask for."""
        page, caller = await self._control.status(), CALLER.get()
        if caller is not None and caller.models is not None:
            page["models"] = [model for model in page["models"] if model["name"] in caller.models]
        return page

    async def _body(self, headers: Headers, receive: Receive, kind: type[Body]) -> Body:
        said = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if said != JSON:  # what a page of another site may send without asking is refused
            raise InvalidArgument(f"content-type is {said[:80]!r}; {JSON} was expected")
        body = await read_body(receive, Arrival(headers, BODY_BYTES_MAX, self._intake), _BODY_S)
        try:
            return kind.model_validate(orjson.loads(body or b"{}"))
        except orjson.JSONDecodeError as problem:
            raise InvalidArgument(f"the body is no JSON: {problem}") from None
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the body"
            raise InvalidArgument(f"{where} is {str(first['input'])[:80]!r}: {first['msg']}") from None


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
