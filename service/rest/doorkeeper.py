"""Asks whoever comes for a token, before anything else is read of a request."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from service import logs
from service.engine.desk import Desk
from service.errors import ServiceError, Unauthenticated
from service.rest import schemas
from service.rest.answers import CLOSE
from service.rest.bodies import drain
from service.rest.guard import send_reply, text_of
from service.rest.heads import combined
from service.rest.schemas import Header, Headers
from service.security.callers import enter, require_all_models, require_permission
from service.security.tokens import Tokens
from service.wire.calls import REQUEST_ID, TRACE_PARENT, request_id_of
from service.wire.failures import failure_of, log_failure

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Asked by probes, which have no token. They tell whether, and why not."""

_MODEL = re.compile(r"/v1/models/([^/:]*)")
_OF_ALL = frozenset({"/v1/models", "/v1/models/", "/openapi.json"})
_LOG = logs.logger(__name__)


def refusal_headers(problem: Exception) -> tuple[Header, ...]:
    """Returns what a caller is told beside the error that it may not ask."""
    more = ((b"www-authenticate", b"Bearer"),) if isinstance(problem, Unauthenticated) else ()
    return (*more, CLOSE)


class Named:
    """Tells the log which certificate a caller showed; connections without one were not made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has a request answered."""
        enter(scope["state"]["caller"])
        await self._app(scope, receive, send)


class Doorkeeper:
    """Lets those in whose token is known, to the models that it is for."""

    def __init__(self, app: ASGIApp, desk: Desk, tokens: Tokens) -> None:
        self._app, self._desk, self._tokens = app, desk, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or has it answered."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = combined(scope["headers"])
            try:
                enter(self._tokens.caller(headers.get(b"authorization")))
                self._check(scope["path"])
            except ServiceError as problem:
                await self._refuse(problem, headers, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str) -> None:
        asked = _MODEL.match(path)
        if path in _OF_ALL:
            require_all_models()
        elif asked is not None:
            require_permission(asked[1])

    async def _refuse(self, problem: ServiceError, headers: Headers, receive: Receive, send: Send) -> None:
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        failure = failure_of(problem, request_id)
        log_failure(_LOG, "other", failure, problem)
        self._desk.metrics.answered("http", "other", failure.code.value, 0.0)
        reply = schemas.failed(failure, schemas.wants_protobuf(headers), headers=refusal_headers(problem))
        await send_reply(reply, request_id, send, more=True)
        await drain(receive)  # so that a caller who still sends its body gets to read why
        await send({"type": "http.response.body", "body": b"", "more_body": False})
