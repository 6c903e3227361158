"""The admin API: one route per command, each answered with the status. For operators, on an address of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service import errors
from service.admin.commands import Commands, Status
from service.codec.failures import failure_of, log_failure
from service.codec.metadata import REQUEST_ID, TRACE_PARENT, request_id_of
from service.config import ServiceSettings
from service.models.desired_state import Label, LogLevel, Version
from service.observability.logging import PRINCIPAL, logger
from service.security.exposure import on_loopback
from service.security.principal import Principal, authorize, authorize_all
from service.security.tokens import TokenStore

_LOG = logger(__name__)
MAX_BODY_BYTES = 64 << 10
_JSON = "application/json"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": 'An error: `{"error": {"code", "message", "request_id"}}`'}
}


class NoArguments(BaseModel):
    """The body of a command without arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OptionalVersion(NoArguments):
    """A version, or none."""

    version: Version | None = None


class Versions(NoArguments):
    """The versions to serve."""

    versions: Annotated[list[Version], Field(min_length=1, max_length=1000)]


class LabelName(NoArguments):
    """A label."""

    label: Label


class LabelledVersion(LabelName):
    """A label and the version that it is set on."""

    version: Version


class Level(NoArguments):
    """The least severity that is logged; null: the setting's."""

    level: LogLevel | None


_NOTHING, _NO_VERSION = NoArguments(), OptionalVersion()


def create_admin_app(settings: ServiceSettings, run_directory: Path, tokens: TokenStore | None) -> FastAPI:
    """Creates the application of the admin listener.

    Args:
      run_directory: where the workers write their statuses.
      tokens: of operators; None: requests are accepted from this machine alone, without a token.
    """
    version = metadata.version("rowcast")
    app = FastAPI(title="rowcast admin", version=version, docs_url=None, redoc_url=None, responses=_ERRORS)
    app.include_router(_routes(Commands(settings, run_directory)))
    app.add_exception_handler(RequestValidationError, _raise_invalid)
    app.add_exception_handler(HTTPException, _raise_http)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Authenticates, and turns every failure into the error envelope."""
        request_id = request_id_of(request.headers.get(REQUEST_ID), request.headers.get(TRACE_PARENT))
        try:
            request.state.principal = _authenticate(request, tokens)
            async with asyncio.timeout(settings.request_timeout_s):
                response = await call_next(request)
        except Exception as raised:  # noqa: BLE001 - nothing but an answer leaves the process
            late = errors.DeadlineExceeded(f"the request took longer than {settings.request_timeout_s:g} s")
            problem = late if isinstance(raised, TimeoutError) else raised
            failure = failure_of(problem, request_id)
            log_failure(_LOG, "admin", failure, problem)
            error = {"code": failure.code.value, "message": failure.message, "request_id": request_id}
            response = JSONResponse({"error": error}, errors.TRANSPORT_STATUS[failure.code].http)
        response.headers.update({REQUEST_ID: request_id, "connection": "close"})
        return response

    return app


def _routes(commands: Commands) -> APIRouter:  # noqa: C901 - one function for each command
    service = APIRouter(prefix="/v1")
    models = APIRouter(prefix="/models/{model}", dependencies=[Depends(_authorize)])
    everything = [Depends(_authorize_all)]

    @service.get("/status", summary="Get what is desired and what is served")
    def get_status(request: Request) -> Status:
        return _visible(request, commands.status())

    @models.post("/load", summary="Load a version, or serve an unloaded model again")
    def load(request: Request, model: str, body: OptionalVersion = _NO_VERSION) -> Status:
        return _visible(request, commands.load(model, body.version))

    @models.post("/unload", summary="Unload a version, or all of a model")
    def unload(request: Request, model: str, body: OptionalVersion = _NO_VERSION) -> Status:
        return _visible(request, commands.unload(model, body.version))

    @models.post("/pin", summary="Serve only these versions")
    def pin(request: Request, model: str, body: Versions) -> Status:
        return _visible(request, commands.pin(model, body.versions))

    @models.post("/unpin", summary="Serve the newest version again")
    def unpin(request: Request, model: str, _: NoArguments = _NOTHING) -> Status:
        return _visible(request, commands.unpin(model))

    @models.post("/label", summary="Set a label on a version")
    def label(request: Request, model: str, body: LabelledVersion) -> Status:
        return _visible(request, commands.label(model, body.label, body.version))

    @models.post("/unlabel", summary="Remove a label")
    def unlabel(request: Request, model: str, body: LabelName) -> Status:
        return _visible(request, commands.unlabel(model, body.label))

    @models.post("/rollback", summary="Return to the previous version, or to an older one")
    def rollback(request: Request, model: str, body: OptionalVersion = _NO_VERSION) -> Status:
        return _visible(request, commands.roll_back(model, body.version))

    @service.post("/drain", summary="Reject calls", dependencies=everything)
    def drain(_: NoArguments = _NOTHING) -> Status:
        return commands.drain(draining=True)

    @service.post("/undrain", summary="Accept calls again", dependencies=everything)
    def undrain(_: NoArguments = _NOTHING) -> Status:
        return commands.drain(draining=False)

    @service.post("/log-level", summary="Set the least severity that is logged", dependencies=everything)
    def log_level(body: Level) -> Status:
        return commands.set_log_level(body.level)

    service.include_router(models)
    return service


def _authenticate(request: Request, tokens: TokenStore | None) -> Principal | None:
    """Returns who sent a request; None: no tokens are required.

    Raises:
      Unauthenticated: the token is missing or unknown.
      PermissionDenied: without tokens, the host is not this machine: a web page may have rebound its name (DNS).
      InvalidArgument: the content type is one that web pages may send across origins.
    """
    principal = None
    if tokens is not None:
        principal = tokens.authenticate(request.headers.get("authorization"))
        PRINCIPAL.set(principal.name)
    else:
        host = request.headers.get("host", "").rpartition("@")[2]
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if not on_loopback(name):
            raise errors.PermissionDenied(f"host is {host[:80]!r}; a loopback address of this machine was expected")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and content_type != _JSON:
        raise errors.InvalidArgument(f"content-type is {content_type[:80]!r}; {_JSON} was expected")
    return principal


async def _authorize(request: Request, model: str) -> None:
    authorize(request.state.principal, model)


async def _authorize_all(request: Request) -> None:
    authorize_all(request.state.principal)


def _visible(request: Request, status: Status) -> Status:
    """Returns a status without the models that the operator may not use."""
    principal: Principal | None = request.state.principal
    if principal is None or principal.models is None:
        return status
    return status | {"models": [model for model in status["models"] if model["name"] in principal.models]}


async def _raise_invalid(_: Request, problem: Exception) -> NoReturn:
    first = problem.errors()[0] if isinstance(problem, RequestValidationError) else {}
    if first["type"] == "json_invalid":
        raise errors.InvalidArgument(f"the body is not valid JSON: {first['ctx']['error']}") from None
    where = ".".join(map(str, first["loc"][1:])) or "the body"
    raise errors.InvalidArgument(f"{where} is {str(first['input'])[:80]!r}: {first['msg']}") from None


async def _raise_http(request: Request, problem: Exception) -> Response:
    if isinstance(problem.__cause__, ClientDisconnect):  # gone, or already answered that it was too slow
        return Response()
    status, detail = (problem.status_code, problem.detail) if isinstance(problem, HTTPException) else (400, "")
    if status == 413:
        raise errors.TooLarge(f"the body is too large; at most {MAX_BODY_BYTES} bytes are accepted")
    if status in {404, 405}:
        path = f"{request.method[:20]} {request.url.path[:80]!r}"
        raise errors.NotFound(f"{path} does not exist; /openapi.json lists what does")
    raise errors.InvalidArgument(detail)
