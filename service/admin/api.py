"""The admin API: one route per command, which returns the status of the service. For operators, on
an address of its own.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service import errors
from service.admin.commands import MODEL_COMMANDS, SERVICE_COMMANDS, log_command
from service.admin.service import Service, Status, is_followed
from service.bounded_pool import AFTER_DEADLINE_S, BoundedPool
from service.change_plane import ChangePlane
from service.codec import json
from service.codec.failures import details_value, failure_of, log_failure
from service.codec.metadata import (
    REQUEST_ID,
    TRACE_PARENT,
    Headers,
    check_request_id,
    deadline_of,
    media_type_of,
    read_headers,
    request_id_of,
)
from service.config import ServiceSettings
from service.contract.changes import CHANGES
from service.coordinator import Coordinator
from service.engine.context import RequestContext
from service.http.change_routes import begin, change_routes, raise_query_problem
from service.http.pages import HeadAsGet
from service.observability.logging import PRINCIPAL, logger
from service.openapi import read_document
from service.query_strings import query_check
from service.security.hosts import AllowedHosts
from service.security.principal import Principal, authorize, authorize_all
from service.security.tokens import TokenStore
from service.versions.lifecycle import VersionManager

_LOG = logger(__name__)
MAX_BODY_BYTES = 8 << 20
"""Size of a deny list of 100,000 ids of 80 letters, the largest body of a command."""
COMMANDS_MAX = 32
"""Maximum number of commands in progress, with requests for the status."""
_JSON = "application/json"
_SCHEMA = re.compile(r"#/components/schemas/(\w+)")
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": 'An error: `{"error": {"code", "message", "request_id"}}`'}
}


class StatusResponse(JSONResponse):
    """A response in which integers beyond 2^53 are strings."""

    def render(self, content: Any) -> bytes:
        """Returns the body."""
        return json.dump(content)


def create_admin_app(
    settings: ServiceSettings,
    coordinator: Coordinator,
    tokens: TokenStore | None,
    versions: VersionManager,
    changes: ChangePlane,
) -> FastAPI:
    """Creates the application of the admin listener.

    Args:
      settings: The settings of the service.
      coordinator: Knows the workers' statuses.
      tokens: Operators' tokens; None: requests are accepted from this machine alone, without a
        token.
      versions: The loaded versions of this worker.
      changes: Changes candidates and contexts.
    """
    version = metadata.version("rowcast")
    app = FastAPI(
        title="rowcast admin",
        version=version,
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        default_response_class=StatusResponse,
        dependencies=[query_check()],
    )
    app.include_router(_routes(Service(settings, coordinator, versions)))
    app.include_router(_change_routes(changes))
    document_of_routes = app.openapi

    @cache
    def openapi() -> dict[str, Any]:
        document = document_of_routes()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_change_schemas())
        return document

    # As FastAPI's documentation extends a document.
    app.openapi = openapi  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _raise_http)
    app.add_exception_handler(RequestValidationError, raise_query_problem)
    app.add_exception_handler(ClientDisconnect, _ignore)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)
    app.add_middleware(HeadAsGet)
    hosts = AllowedHosts(settings.admin_host, settings.allowed_hosts)

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Authenticates, and turns every failure into the error envelope."""
        headers = read_headers(request.scope["headers"])
        request_id = request_id_of(headers.get(REQUEST_ID), headers.get(TRACE_PARENT))
        try:
            principal = _authenticate(request.method, headers, tokens, hosts)
            check_request_id(headers, request_id)
            deadline = deadline_of(headers, settings.request_timeout_s)
            context = RequestContext("other", request_id, deadline, principal)
            context.received_at = time.monotonic()
            request.state.context = context
            request.state.headers = headers
            response = await call_next(request)
            if request.method == "POST" and response.status_code < 400:
                arguments = getattr(request.state, "arguments", None)
                log_command(request.url.path, arguments)
        except Exception as problem:  # noqa: BLE001 - nothing but a response leaves the process
            failure = failure_of(problem, request_id, is_operator=True)
            log_failure(_LOG, "admin", failure, problem)
            status = errors.TRANSPORT_STATUS[failure.code].http
            response = JSONResponse(details_value(failure), status)
            if failure.retry_after_s is not None:
                response.headers["retry-after"] = str(failure.retry_after_s)

        # All workers accept from one socket, and one that hangs accepts nothing. A client that kept
        # its connection would stay with one worker, also once it hangs.
        response.headers.update({REQUEST_ID: request_id, "connection": "close"})
        return response

    return app


def _routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1")
    pool = BoundedPool("commands", COMMANDS_MAX)

    async def run(request: Request, function: Callable[[], Status]) -> Status:
        return await pool.run(function, _context(request).deadline)

    @router.get("/status", summary="Get the desired state and the versions that are served")
    async def get_status(request: Request) -> Status:
        return _visible(request, await run(request, service.status))

    @router.get(
        "/topology", summary="Get the addresses that hold each part of large tables and indexes"
    )
    async def get_topology(request: Request) -> Status:
        authorize_all(_context(request).principal)
        return await run(request, service.topology)

    @router.get("/report", summary="Get the facts that a bug report needs, without secrets")
    async def get_report(request: Request) -> Status:
        authorize_all(_context(request).principal)
        return await run(request, service.report)

    @router.get("/models/{model}/deny", summary="Get the deny list of a model")
    async def get_denied(request: Request, model: str) -> Status:
        authorize(_context(request).principal, model)
        return await run(request, partial(service.denied, model))

    for name, model_command in MODEL_COMMANDS.items():
        _add_command(router, service, pool, "/models/{model}/", name, model_command, [_MODEL])
    for name, service_command in SERVICE_COMMANDS.items():
        _add_command(router, service, pool, "/", name, service_command, [])
    return router


def _add_command(
    router: APIRouter,
    service: Service,
    pool: BoundedPool,
    prefix: str,
    name: str,
    command: type[BaseModel],
    parameters: list[Any],
) -> None:
    """Adds the route of a command.

    Args:
      router: Gets the route.
      service: Applies the command.
      pool: The threads of commands.
      prefix: The path of the route without the name of the command.
      name: The name of the command.
      command: The arguments of the command.
      parameters: What the OpenAPI document says of the parameters in the path.
    """

    async def apply(request: Request, response: Response) -> Status:
        context = _context(request)
        model = request.path_params.get("model", "")
        if model:
            authorize(context.principal, model)
        else:
            authorize_all(context.principal)
        try:
            async with asyncio.timeout(context.deadline - time.monotonic()):
                body = await request.body()
        except TimeoutError:
            raise errors.DeadlineExceeded("the body did not arrive in time") from None
        # The command waits until the workers follow the new state.
        applying = partial(service.apply, name, body, model, context.deadline)
        status, arguments = await pool.run(applying, context.deadline + AFTER_DEADLINE_S)
        request.state.arguments = arguments
        if not is_followed(status):
            response.status_code = 202
        return _visible(request, status)

    body = {"content": {_JSON: {"schema": command.model_json_schema()}}}
    late = {"202": {"description": "Accepted, but not in effect in every worker yet"}}
    extra = {"requestBody": body, "parameters": parameters, "responses": late}

    # The docstring of a command is its summary in the OpenAPI document.
    summary = " ".join((command.__doc__ or "").split())
    router.post(prefix + name, name=name, summary=summary, openapi_extra=extra)(apply)


def _authenticate(
    method: str, headers: Headers, tokens: TokenStore | None, hosts: AllowedHosts
) -> Principal | None:
    """Returns who sent a request; None: no tokens are required.

    Raises:
      Unauthenticated: The token is missing or unknown.
      PermissionDenied: Without tokens, the host is not this machine.
      InvalidArgument: The content type is one that web pages may send across origins.
    """
    principal = None
    if tokens is not None:
        principal = tokens.authenticate(headers.get("authorization"))
        PRINCIPAL.set(principal.name)
    else:
        # Without tokens, only programs of this machine are trusted, and no web page.
        hosts.check(headers.get("host", ""))

    # A page may send forms and plain text across origins without being permitted to. JSON needs a
    # preflight request, which the admin API does not accept.
    content_type = media_type_of(headers.get("content-type", ""))
    if method == "POST" and content_type != _JSON:
        raise errors.InvalidArgument.of_field("content-type", repr(content_type[:80]), _JSON)
    return principal


def _context(request: Request) -> RequestContext:
    context: RequestContext = request.state.context
    return context


def _visible(request: Request, status: Status) -> Status:
    """Returns a status without the models that the operator may not use."""
    principal = _context(request).principal
    if principal is None or principal.models is None:
        return status
    visible_models = [model for model in status["models"] if model["name"] in principal.models]
    return status | {"models": visible_models}


async def _ignore(_: Request, __: Exception) -> Response:
    # The client is gone, or has its response already: it was too slow. Nobody reads this one.
    return Response(status_code=errors.TRANSPORT_STATUS[errors.Code.CANCELLED].http)


async def _raise_http(request: Request, problem: Exception) -> Response:
    # The middleware that limits bodies raises 413; the router raises 404 and 405.
    if isinstance(problem, HTTPException) and problem.status_code == 413:
        raise errors.TooLarge.of_limit("body", f"more than {MAX_BODY_BYTES} bytes", MAX_BODY_BYTES)
    path = f"{request.method[:20]} {request.url.path[:80]!r}"
    message = f"path {path} does not exist; /openapi.json lists what does"
    violation = errors.FieldViolation("path", path, "a path that /openapi.json lists")
    raise errors.NotFound(message, violation)


def _change_schemas() -> dict[str, Any]:
    """Returns the schemas of changes, and of what is in them, from the document of the HTTP
    endpoint.
    """
    schemas = read_document()["components"]["schemas"]
    names = ["ChangeResponse", *[change.body.schema for change in CHANGES.values()]]
    # Grows while it is read.
    for name in names:
        content = json.dump(schemas[name]).decode()
        names += [part for part in _SCHEMA.findall(content) if part not in names]
    return {name: schemas[name] for name in sorted(names)}


def _change_routes(plane: ChangePlane) -> APIRouter:
    """Returns the routes; `plane` makes the changes."""
    router = APIRouter()
    changes = plane.changes

    @router.get("/v1/models/{model}/changes", summary="Get what was changed since the export")
    async def get_changes(request: Request, model: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        return await plane.run(partial(changes.status, model, context.deadline), context)

    @router.post(
        "/v1/models/{model}/changes/backup",
        summary="Write a copy of the changes file of a model",
    )
    async def back_up_changes(request: Request, model: str, path: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        backing_up = partial(changes.back_up, model, Path(path), context.deadline)
        size = await plane.run(backing_up, context)
        return {"file": str(changes.path_of(model)), "path": path, "bytes": size}

    router.include_router(change_routes(plane, authorize))
    return router
