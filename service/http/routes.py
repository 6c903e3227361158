"""The routes: the five calls, which take and return bytes, and those of models, health
and metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.codec import signatures
from service.codec.metadata import TIMEOUT_MS, timeout_s_of
from service.codec.operations import OPERATIONS
from service.dataplane import Dataplane
from service.engine.calls import Target
from service.engine.context import RequestContext
from service.errors import InvalidArgument, NotFound, NotReady
from service.http.admission import is_unusual
from service.http.body import BodyReader, response_of, send_pieces
from service.http.errors import MethodNotAllowed
from service.http.headers import JSON, PROTOBUF, accepts_protobuf, is_protobuf
from service.http.schemas import ErrorResponse, ModelDetails, ModelsResponse
from service.observability.metrics import CONTENT_TYPE
from service.security.principal import authorize, authorize_all

MODEL_PATHS = (
    "/v1/models/{model}",
    "/v1/models/{model}/versions/{version}",
    "/v1/models/{model}/labels/{label}",
)
_ERROR: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorResponse, "description": "The request failed."}
}


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
    """Answers the five calls, as an ASGI application: through FastAPI's own handling a call costs
    twice as much.
    """

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane
        self._timeout_s = dataplane.settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path = scope["path_params"]
        headers = scope["state"]["headers"]
        context: RequestContext = scope["state"]["context"]
        operation = OPERATIONS.get(path["call"])
        if operation is None:
            raise NotFound(
                f"call {path['call'][:40]!r} does not exist; the calls are {', '.join(OPERATIONS)}"
            )
        context.call = operation.name
        context.model = path["model"]
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], "POST")
        target = target_of(path["model"], path.get("version"), path.get("label"))
        protobuf = is_protobuf(headers)
        if (timeout_s := timeout_s_of(headers.get(TIMEOUT_MS))) is not None:
            context.deadline = min(context.deadline, time.monotonic() + timeout_s)
        authorize(context.principal, target.model)
        if is_unusual(headers):  # the admission in front of the application has looked at others
            engine = self._dataplane.engine
            engine.check_admission(context.call, context.deadline, target.model)

        async def disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        as_protobuf = accepts_protobuf(headers)
        with self._dataplane.budget.reservation(context.call, context.model) as held:
            context.held = held
            reader = BodyReader(self._dataplane, context, held, scope["headers"])
            body = await reader.read(headers, receive)
            context.received_at = time.monotonic()
            context.disconnected = disconnected
            pieces = await self._dataplane.call(
                operation, body, protobuf, target, context, as_protobuf
            )
            media_type = PROTOBUF if as_protobuf else JSON
            await send_pieces(pieces, media_type, self._timeout_s, send)


def add_routes(app: FastAPI, dataplane: Dataplane) -> None:  # noqa: C901 - one function a path
    """Adds the routes of calls, models, health and metrics."""
    engine = dataplane.engine

    async def list_models(request: Request) -> Response:
        """Lists the models with their versions and states."""
        context: RequestContext = request.state.context
        context.call = "models"
        authorize_all(context.principal)
        states = engine.models()
        message = signatures.models_message
        value = signatures.models_value
        return response_of(request.state.headers, lambda: message(states), lambda: value(states))

    async def get_model(request: Request, model: str) -> Response:
        """Describes the current version: signatures of the calls, readers, towers, tables, indexes
        and candidates.
        """
        return describe(request, model)

    async def get_version(request: Request, model: str, version: str) -> Response:
        """Describes a version of a model."""
        return describe(request, model, version)

    async def get_label(request: Request, model: str, label: str) -> Response:
        """Describes the version that a label names."""
        return describe(request, model, label=label)

    def describe(
        request: Request, model: str, version: str | None = None, label: str | None = None
    ) -> Response:
        context: RequestContext = request.state.context
        context.call = "model"
        context.model = model
        authorize(context.principal, model)
        details = engine.model(target_of(model, version, label))
        return response_of(
            request.state.headers, lambda: signatures.details_message(details), lambda: details
        )

    async def livez() -> dict[str, bool]:
        """Answers while the process should be left running."""
        return {"live": True}

    async def readyz() -> dict[str, bool]:
        """Answers whether requests should be sent here, and if not, why."""
        if problem := engine.problem:
            raise NotReady(problem)
        return {"ready": True}

    def metrics() -> Response:
        """Returns the metrics in the text format of Prometheus."""
        return Response(dataplane.metrics.render(), headers={"content-type": CONTENT_TYPE})

    calls = CallEndpoint(dataplane)
    # Inserted before all other routes, so that these are matched first.
    app.router.routes[:0] = [Route(path + ":{call}", calls) for path in MODEL_PATHS]
    endpoints: dict[str, Callable[..., Any]]
    endpoints = {"/v1/models": list_models, "/livez": livez, "/readyz": readyz, "/metrics": metrics}
    endpoints |= zip(MODEL_PATHS, (get_model, get_version, get_label), strict=True)
    schemas = {"/v1/models": ModelsResponse} | dict.fromkeys(MODEL_PATHS, ModelDetails)
    for path, endpoint in endpoints.items():
        tag = "models" if "models" in path else "health"
        app.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            tags=[tag],
            responses=_ERROR | ({200: {"model": schemas[path]}} if path in schemas else {}),
            response_class=PlainTextResponse if path == "/metrics" else JSONResponse,
        )
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
