"""The HTTP application: admission, calls, and FastAPI with its routes and documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from service.change_plane import ChangePlane
from service.codec.operations import OPERATIONS
from service.contract.changes import CHANGES
from service.dataplane import Dataplane
from service.errors import FieldViolation, InvalidArgument, NotFound
from service.http.admission import Admission
from service.http.calls import CallEndpoint, MethodNotAllowed
from service.http.change_routes import add_change_routes, raise_query_problem
from service.http.docs import serve_document
from service.http.middleware import PROBES, RequestContextMiddleware
from service.http.other_protocols import OtherProtocol, check_spoken
from service.http.pages import DOCUMENTATION, HeadAsGet, add_start_page
from service.http.routes import add_routes
from service.query_strings import query_check

_CALL_AS_PATH = re.compile(rf"(/v1/models/[^:]{{1,80}})/({'|'.join(OPERATIONS)})")
_CHANGE = re.compile(r"(/v1/models/[^/]{1,80}/(rows|candidates|contexts))(?:/.*)?")
_EMPTY_NAME = re.compile(r"/v1/models/(?:[:/].*|[^/]+/(?:versions|labels)/(?::.*)?)?")


def create_http_front(
    pages: ASGIApp,
    dataplane: Dataplane,
    protocols: Sequence[OtherProtocol],
    protocols_off: Mapping[str, OtherProtocol],
) -> ASGIApp:
    """Returns the ASGI application that uvicorn passes requests to.

    Calls are matched once and handled beside FastAPI: through its router, middleware and exit
    stacks a small call costs a tenth more.

    Args:
      pages: The application that `create_http_app` returned.
      dataplane: Computes the calls.
      protocols: The protocols that the service speaks beside its own.
      protocols_off: Those that it could speak, by their names.
    """
    # Admission comes first, so that a rejection costs as little as a response can.
    calls = RequestContextMiddleware(CallEndpoint(dataplane, protocols_off), dataplane, protocols)
    return Admission(calls, pages, dataplane, protocols)


def create_http_app(
    dataplane: Dataplane,
    changes: ChangePlane,
    protocols: Sequence[OtherProtocol],
    protocols_off: Mapping[str, OtherProtocol],
) -> FastAPI:
    """Returns the application of pages and documents. Starts nothing: the caller sets the lifespan.

    Args:
      dataplane: Computes the calls.
      changes: Makes the changes that clients send.
      protocols: The protocols that the service speaks beside its own.
      protocols_off: Those that it could speak, by their names.
    """
    # Probes may add a parameter against caches, and scrapes of Prometheus may have some.
    unchecked = PROBES.union({"/metrics"}, *[protocol.probes for protocol in protocols])
    # FastAPI's /docs would load its assets from the internet, which a service may not reach.
    create_app: Callable[..., FastAPI] = FastAPIOffline
    documents: dict[str, Any] = {
        "docs_url": DOCUMENTATION,
        "redoc_url": None,
        "static_url": f"{DOCUMENTATION}/assets",
    }
    if not dataplane.settings.web_pages:
        create_app = FastAPI
        documents = {"openapi_url": None}
    app = create_app(
        title="rowcast",
        # Of the API, as in its paths. The version of rowcast changes with each commit.
        version="v1",
        swagger_ui_parameters={"defaultModelsExpandDepth": -1, "displayRequestDuration": True},
        redirect_slashes=False,
        separate_input_output_schemas=False,
        dependencies=[query_check(unchecked)],
        # To look for providers of telemetry takes 7 us per request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        **documents,
    )
    # Before rowcast's routes, whose patterns match some paths of other protocols.
    for protocol in protocols:
        protocol.add_pages(app, dataplane)
    if dataplane.settings.web_pages:
        add_start_page(app)
    add_routes(app, dataplane)
    add_change_routes(app, changes)
    if dataplane.settings.web_pages:
        serve_document(app, dataplane)
    # Handlers raise errors of the service, and the middleware around them writes every response.
    as_service_error = partial(_raise_as_service_error, protocols_off)
    app.add_exception_handler(HTTPException, as_service_error)
    app.add_exception_handler(RequestValidationError, raise_query_problem)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestContextMiddleware, dataplane=dataplane, protocols=protocols)
    return app


async def _raise_as_service_error(
    protocols_off: Mapping[str, OtherProtocol], request: Request, problem: Exception
) -> Response:
    """Turns the framework's own errors, 404 and 405 among them, into errors of the service."""
    assert isinstance(problem, HTTPException)  # noqa: S101 - registered for it
    # A path with an empty name matches no route: 404 would send a client to look for the model.
    if _EMPTY_NAME.fullmatch(request.url.path):
        message = "a name in the path is empty; /v1/models/MODEL was expected"
        violation = FieldViolation("path", "an empty name", "/v1/models/MODEL")
        raise InvalidArgument(message, violation)
    if problem.status_code == 404:
        check_spoken(protocols_off, request.url.path)
        raise _no_such_path(request.method, request.url.path, bool(request.app.openapi_url))
    if problem.status_code == 405:
        raise MethodNotAllowed(request.method, (problem.headers or {}).get("Allow", ""))
    raise InvalidArgument(problem.detail)


def _no_such_path(method: str, path: str, has_web_pages: bool) -> NotFound:
    """Returns the error of a path that does not exist, with what was probably meant."""
    shown_path = repr(path[:80])
    message = f"path {shown_path} does not exist"
    expected = "a path of the API"
    if has_web_pages:
        message += "; /docs lists the paths"
        expected = "a path that /docs lists"
    call = _CALL_AS_PATH.fullmatch(path)
    change = _CHANGE.fullmatch(path)
    if call is not None:  # as of many other services
        message = f"path {shown_path} does not exist; write {call[1]}:{call[2]}"
    elif change is not None:
        actions = ", ".join(action for kind, action in CHANGES if kind == change[2])
        message += f"; {change[2]} are changed by POST {change[1]}/ACTION, with one of {actions}"
    elif path == "/" and method == "GET" and has_web_pages:
        message = (
            "the page at / is for browsers, which send accept: text/html; /v1/models lists the "
            "models, /readyz says whether they are served, and /docs lists the paths"
        )
    elif path.startswith("/v1/"):
        message += "; commands of operators go to the admin API, such as by rowcast-serve ctl"
    return NotFound(message, FieldViolation("path", shown_path, expected))
