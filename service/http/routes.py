"""The routes of models, health and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from service.bounded_pool import BoundedPool
from service.codec.message_values import value_of
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.errors import NotReady
from service.http.calls import target_of
from service.http.error_schemas import ERRORS
from service.http.middleware import response_of
from service.http.pages import PAGES_MAX
from service.observability.metrics import CONTENT_TYPE
from service.openapi import ResponseSchema, json_content
from service.security.principal import authorize, authorize_all

MODEL_PATHS = (
    "/v1/models/{model}",
    "/v1/models/{model}/versions/{version}",
    "/v1/models/{model}/labels/{label}",
)
_TEXT: dict[str, Any] = {
    "description": "The metrics.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


class LiveResponse(ResponseSchema):
    """The process should be left running."""

    live: bool


class ReadyResponse(ResponseSchema):
    """Requests should be sent here."""

    ready: bool


def add_routes(app: FastAPI, dataplane: Dataplane) -> None:  # noqa: C901 - one function a path
    """Adds the routes of models, health and metrics; calls never reach the application."""
    descriptions = dataplane.descriptions
    scrapes = BoundedPool("scrapes", PAGES_MAX)

    async def list_models(request: Request) -> Response:
        """Lists the models with their versions and states."""
        context: RequestContext = request.state.context
        context.call = "models"
        authorize_all(context.principal)
        message = descriptions.models()
        return response_of(request.state.headers, lambda: message, lambda: value_of(message))

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
        message, value = descriptions.model(target_of(model, version, label))
        return response_of(request.state.headers, lambda: message, lambda: value)

    async def livez() -> dict[str, bool]:
        """Responds while the process should be left running."""
        return {"live": True}

    async def readyz() -> dict[str, bool]:
        """Returns whether requests should be sent here, and if not, why."""
        if problem := dataplane.problem():
            raise NotReady(problem)
        return {"ready": True}

    async def metrics(request: Request) -> Response:
        """Returns the metrics in the text format of Prometheus."""
        # In a thread: the files of all workers are read.
        deadline = request.state.context.deadline
        content = await scrapes.run(dataplane.metrics.render, deadline)
        return Response(content, headers={"content-type": CONTENT_TYPE})

    endpoints: dict[str, Callable[..., Any]]
    endpoints = {"/v1/models": list_models, "/livez": livez, "/readyz": readyz, "/metrics": metrics}
    # In the order of the paths: a model, its versions, its labels.
    endpoints |= zip(MODEL_PATHS, (get_model, get_version, get_label), strict=True)
    schemas = {
        "/v1/models": json_content("ModelsResponse"),
        "/livez": {"model": LiveResponse},
        "/readyz": {"model": ReadyResponse},
        **dict.fromkeys(MODEL_PATHS, json_content("ModelDetails")),
    }
    for path, endpoint in endpoints.items():
        success: dict[str, Any] = _TEXT
        response_class: type[Response] = Response
        if path in schemas:
            success = schemas[path]
            response_class = JSONResponse
        tag = "health"
        if "models" in path:
            tag = "models"
        app.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            tags=[tag],
            operation_id=endpoint.__name__,
            summary=" ".join((endpoint.__doc__ or "").split()),
            response_model=None,
            responses=ERRORS | {200: success},
            response_class=response_class,
        )
