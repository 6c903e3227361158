"""What is asked of the HTTP door beside the five calls: models, health and documents, by Starlette."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from service.engine.desk import Desk
from service.errors import InvalidArgument, NotFound, ServiceError
from service.rest.docs import docs_of
from service.rest.doorkeeper import Doorkeeper, Named
from service.rest.guard import Guard
from service.rest.routes import failed_response, routes_of


def create_app(desk: Desk) -> ASGIApp:
    """Returns what answers at the HTTP door of a desk whatever is none of the five calls. Nothing is started here.

    Args:
      desk: the engine and the limits that this door enforces itself.
    """
    app = Starlette(
        routes=[*routes_of(desk), *docs_of(desk)],
        middleware=[Middleware(Guard, desk=desk)],
        exception_handlers={ServiceError: _service_error, HTTPException: _http_error},
    )
    app.router.redirect_slashes = False  # a path is there or not, and a token goes nowhere else
    if desk.guards.tokens is not None:
        return Doorkeeper(app, desk, desk.guards.tokens)
    certificates = desk.guards.certificates
    return Named(app) if certificates is not None and certificates.of_callers else app


async def _service_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, ServiceError)  # noqa: S101 - registered for it
    return failed_response(request, problem)


async def _http_error(request: Request, problem: Exception) -> Response:
    """Tells Starlette's own refusals, 404 and 405 among them, in the one shape of errors."""
    assert isinstance(problem, HTTPException)  # noqa: S101 - registered for it
    if problem.status_code == 404:
        return failed_response(request, NotFound(f"path {request.url.path[:80]!r} is not there; /docs lists the paths"))
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (problem.headers or {}).items())
    told = InvalidArgument(f"method {request.method[:20]} is not taken here: {problem.detail}")
    return failed_response(request, told, problem.status_code, headers)
