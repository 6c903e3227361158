"""The routes: the five calls, which take and return bytes, and those of models, health and metrics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.responses import Response
from starlette.types import Receive

from service.codec import json, signatures
from service.codec.metadata import TIMEOUT_MS, timeout_s_of
from service.codec.operations import OPERATIONS
from service.dataplane import Application
from service.engine.context import RequestContext
from service.engine.requests import Target
from service.errors import InvalidArgument, NotFound, NotReady
from service.http.headers import JSON, PROTOBUF, Headers, accepts_protobuf, is_protobuf, text_of
from service.http.schemas import ErrorResponse
from service.observability.metrics import CONTENT_TYPE
from service.security.principal import authorize, authorize_all

MODEL_PATHS = ("/v1/models/{model}", "/v1/models/{model}/versions/{version}", "/v1/models/{model}/labels/{label}")
_PATHS = tuple(path.replace("}", ":name}") for path in MODEL_PATHS)
_VERSION_MAX = 2**63 - 1
_ERROR: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorResponse, "description": "The request failed."}}


class NameConvertor(StringConvertor):
    """A name in a path, perhaps empty, so that a path without one is rejected for that."""

    regex = "[^/:]*"


register_url_convertor("name", NameConvertor())


def target_of(model: str, version: str | None = None, label: str | None = None) -> Target:
    """Returns the model, and the version or label, that a path names.

    Raises:
      InvalidArgument: a name is empty, or the version is not a positive integer.
    """
    for name, value in (("model", model), ("label", label)):
        if value == "":
            raise InvalidArgument(f"{name} is empty; its name was expected in the path, /v1/models/MODEL")
    if version is None:
        return Target(model, label=label or "")
    number = int(version) if version.isascii() and version.isdecimal() and len(version) < 20 else 0
    if not 0 < number <= _VERSION_MAX:
        raise InvalidArgument(f"version is {version[:40]!r}; a positive integer was expected")
    return Target(model, number)


def add_call_routes(app: FastAPI, application: Application) -> None:
    """Adds the five calls as plain routes of Starlette: through FastAPI's own handling a call costs twice as much."""
    dataplane, metrics = application.dataplane, application.metrics

    async def call(request: Request) -> Response:
        context, headers, path = request.state.context, request.state.headers, request.path_params
        operation = OPERATIONS.get(path["call"])
        if operation is None:
            raise NotFound(f"there is no call {path['call'][:40]!r}; calls are {', '.join(OPERATIONS)}")
        context.call = operation.name
        target = target_of(path["model"], path.get("version"), path.get("label"))
        protobuf = is_protobuf(headers)
        timeout_s = timeout_s_of(text_of(headers, TIMEOUT_MS))
        if timeout_s is not None:
            context.deadline = min(context.deadline, time.monotonic() + timeout_s)
        dataplane.check_admission(context.call, context.deadline)
        body = (await request.receive())["body"]
        context.disconnected = functools.partial(_disconnected, request.receive)
        answer, several = await dataplane.call(operation, body, protobuf, target, context)
        began = time.perf_counter()
        response = _response(
            headers, lambda: operation.write_message(answer), lambda: operation.write_json(answer, several)
        )
        context.phases["encode"] = seconds = time.perf_counter() - began
        metrics.phase(context.call, "encode", seconds)
        return response

    for path in _PATHS:
        app.add_route(path + ":{call:name}", call, methods=["POST"], include_in_schema=False)


def add_model_routes(app: FastAPI, application: Application) -> None:  # noqa: C901 - one function a path
    """Adds the routes of models, health and metrics."""
    engine = application.engine

    async def list_models(request: Request) -> Response:
        """Lists the models with their versions and states."""
        context: RequestContext = request.state.context
        context.call = "models"
        authorize_all(context.principal)
        states = engine.models()
        message, value = signatures.models_message, signatures.models_value
        return _response(request.state.headers, lambda: message(states), lambda: value(states))

    async def get_model(request: Request, model: str) -> Response:
        """Describes the current version: signatures of the calls, readers, towers, tables, indexes and candidates."""
        return describe(request, model)

    async def get_version(request: Request, model: str, version: str) -> Response:
        """Describes a version of a model."""
        return describe(request, model, version)

    async def get_label(request: Request, model: str, label: str) -> Response:
        """Describes the version that a label names."""
        return describe(request, model, label=label)

    def describe(request: Request, model: str, version: str | None = None, label: str | None = None) -> Response:
        context: RequestContext = request.state.context
        context.call = "model"
        authorize(context.principal, model)
        details = engine.model(target_of(model, version, label))
        return _response(request.state.headers, lambda: signatures.details_message(details), lambda: details)

    async def livez() -> dict[str, bool]:
        """Answers while the process should be left running."""
        return {"live": True}

    async def readyz() -> dict[str, bool]:
        """Answers whether requests should be sent here, and if not, why."""
        if problem := application.readiness.problem():
            raise NotReady(problem)
        return {"ready": True}

    def metrics() -> Response:
        """Returns the metrics in the text format of Prometheus."""
        return Response(application.metrics.render(), headers={"content-type": CONTENT_TYPE})

    endpoints: dict[str, Callable[..., Any]]
    endpoints = {"/v1/models": list_models, "/livez": livez, "/readyz": readyz, "/metrics": metrics}
    endpoints |= zip(_PATHS, (get_model, get_version, get_label), strict=True)
    for path, endpoint in endpoints.items():
        options: dict[str, Any] = {"tags": ["models" if "models" in path else "health"], "responses": _ERROR}
        app.add_api_route(path, endpoint, methods=["GET"], **options)
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


def _response(headers: Headers, message: Callable[[], Any], value: Callable[[], Any]) -> Response:
    """Returns an answer in the form that the client accepts."""
    if accepts_protobuf(headers):
        return Response(message().SerializeToString(), media_type=PROTOBUF)
    return Response(json.dump(value()), media_type=JSON)


async def _disconnected(receive: Receive) -> None:
    """Returns when the client of a request whose body has been read has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass
