"""The HTTP application: routes, middleware and documents put together."""

from __future__ import annotations

from importlib import metadata

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.dataplane import Application
from service.errors import InvalidArgument, NotFound
from service.http.body import BodyMiddleware
from service.http.docs import add_docs
from service.http.middleware import AuthenticationMiddleware, MethodNotAllowed, RequestContextMiddleware
from service.http.routes import add_call_routes, add_model_routes


def create_http_app(application: Application) -> FastAPI:
    """Returns the application for uvicorn; nothing is started here, and the lifespan is the caller's to set."""
    app = FastAPI(
        title="rowcast",
        version=metadata.version("rowcast"),
        openapi_url=None,  # add_docs adds one that knows who may see it
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # looking for its providers takes 7 us a request
    )
    add_call_routes(app, application)
    add_model_routes(app, application)
    add_docs(app, application)
    app.add_exception_handler(HTTPException, _raise_as_service_error)
    app.add_middleware(BodyMiddleware, application=application)  # the innermost comes first
    if application.tokens is not None:
        app.add_middleware(AuthenticationMiddleware, tokens=application.tokens)
    app.add_middleware(RequestContextMiddleware, application=application)
    return app


async def _raise_as_service_error(request: Request, problem: Exception) -> Response:
    """Turns the framework's own errors, 404 and 405 among them, into errors of the service."""
    assert isinstance(problem, HTTPException)  # noqa: S101 - registered for it
    if problem.status_code == 404:
        raise NotFound(f"there is no path {request.url.path[:80]!r}; /docs lists the paths")
    if problem.status_code == 405:
        raise MethodNotAllowed(request.method, (problem.headers or {}).get("Allow", ""))
    raise InvalidArgument(problem.detail)
