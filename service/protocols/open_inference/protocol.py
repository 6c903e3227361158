"""The protocol over both transports: its paths over HTTP, and its methods over gRPC.

What describes the service and its models is one JSON value for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version as installed_version
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from service.codec import json, protobuf
from service.codec.columns import check_type, present_fields, shown
from service.codec.failures import Failure
from service.codec.metadata import JSON, JSON_LENGTH, Headers, check_content_type
from service.config import ServiceSettings
from service.dataplane import Dataplane
from service.engine.calls import Target
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.errors import TRANSPORT_STATUS, NotFound, NotReady, ServiceError, Unimplemented
from service.http.calls import BodyReader, target_of
from service.http.other_protocols import ErrorResponse, HttpCall, OtherProtocol
from service.protocols.binding import SentTensors
from service.protocols.exchange import CallForm, ReturnedTensors, TensorExchange
from service.protocols.grpc_methods import Method, grpc_service, tensor_method
from service.protocols.open_inference.messages import (
    OCTET_STREAM,
    ResponseForm,
    read_body,
    read_message,
    response_body,
    response_message,
)
from service.protocols.signatures import Tensor, find_signature
from service.security.principal import authorize, authorize_all
from tensors.open_inference import BYTES, DATATYPES
from tensors.stubs import open_inference_pb2 as pb

SERVICE = "inference.GRPCInferenceService"
INFER = "infer"
"""The name of the call, as in metrics."""
PLATFORM = "rowcast"
"""The platform in the metadata of models, which clients show."""
EXTENSIONS = ("binary_tensor_data", "model_repository")
"""The extensions of the protocol that the service provides, by Triton's names."""
LIVE = "/v2/health/live"
READY = "/v2/health/ready"
_MODEL = "/v2/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"
_STATES = {
    "available": "READY",
    "kept": "READY",
    "loading": "LOADING",
    "retiring": "UNLOADING",
    "failed": "UNAVAILABLE",
}
"""The words of Triton's repository for the states of versions. It has none for a version that is
kept, which serves requests that name it.
"""


def server_metadata() -> dict[str, Any]:
    """Returns the name, the version and the extensions of the service."""
    version = installed_version("rowcast")
    return {"name": "rowcast", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(engine: Engine, target: Target) -> dict[str, Any]:
    """Returns the inputs and outputs of the default signature of a version, and the versions of
    its model that requests can name.

    Raises:
      ServiceError: The version is not served.
    """
    # The protocol describes one signature per model. Others are chosen by a parameter.
    with engine.lease(target) as version:
        signature = find_signature(version, "")
        # Only loaded versions can be named by requests.
        states = engine.models().get(version.model, ())
        return {
            "name": version.model,
            "versions": [str(state.version) for state in states if state.is_loaded],
            "platform": PLATFORM,
            "inputs": [_tensor_metadata(tensor) for tensor in signature.tensors],
            "outputs": [_tensor_metadata(tensor) for tensor in signature.outputs],
        }


def repository_index(engine: Engine, ready: bool) -> list[dict[str, str]]:
    """Returns all versions of all models.

    Args:
      engine: Has the models.
      ready: Whether to leave out versions that serve no requests.
    """
    return [
        {
            "name": model,
            "version": str(state.version),
            "state": _STATES[state.state],
            "reason": state.problem,
        }
        for model, states in engine.models().items()
        for state in states
        if state.is_loaded or not ready
    ]


def _check_repository(name: str) -> None:
    """Rejects the name of a repository: the only one, of all models, has none."""
    if name:
        raise NotFound.of_field("repository_name", shown(name), "no name")


def _tensor_metadata(tensor: Tensor) -> dict[str, Any]:
    datatype = BYTES
    if tensor.dtype != "string":
        datatype = DATATYPES[np.dtype(tensor.dtype)]
    return {"name": tensor.name, "datatype": datatype, "shape": list(tensor.shape)}


def _start(dataplane: Dataplane, scope: Scope) -> HttpCall:
    context: RequestContext = scope["state"]["context"]
    headers: Headers = scope["state"]["headers"]
    check_content_type(headers, (JSON, OCTET_STREAM, ""), f"{JSON} or {OCTET_STREAM}")
    response_headers = [(b"content-type", JSON.encode())]

    def read(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
        return read_body(body, headers.get(JSON_LENGTH), url or Target(), settings)

    def write(returned: ReturnedTensors, form: ResponseForm) -> bytes:
        text, parts = response_body(returned, form)
        # Without binary outputs, the response is JSON alone.
        if parts:
            response_headers[:] = [
                (b"content-type", OCTET_STREAM.encode()),
                (JSON_LENGTH.encode(), b"%d" % len(text)),
            ]
        return b"".join([text, *parts])

    # The URL names the model.
    exchange = TensorExchange(context, dataplane.engine, CallForm(read, write))
    return HttpCall(exchange, lambda: response_headers)


def _error_response(failure: Failure) -> ErrorResponse:
    status = TRANSPORT_STATUS[failure.code].http
    return ErrorResponse(status, JSON, json.dump({"error": failure.message}))


class _Pages:
    """Everything but inference, over HTTP."""

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates the pages; `dataplane` has the models."""
        self._dataplane = dataplane
        self._engine = dataplane.engine
        self._bodies = BodyReader(dataplane)

    async def live(self) -> Response:
        """Responds while the process should be left running."""
        return JSONResponse({"live": True})

    async def ready(self) -> Response:
        """Responds whether requests should be sent here, and if not, why."""
        self._check_ready()
        return JSONResponse({"live": True, "ready": True})

    async def describe_server(self) -> Response:
        """Describes the service."""
        return JSONResponse(server_metadata())

    async def describe_model(
        self, request: Request, model: str, version: str | None = None
    ) -> Response:
        """Describes the default signature of a model."""
        target = self._target(request, model, version)
        return JSONResponse(model_metadata(self._engine, target))

    async def model_ready(
        self, request: Request, model: str, version: str | None = None
    ) -> Response:
        """Responds whether a model serves requests, and if not, why."""
        target = self._target(request, model, version)
        with self._engine.lease(target) as served:
            name = served.model
        self._check_ready()
        return JSONResponse({"name": name, "ready": True})

    async def index(self, request: Request) -> Response:
        """Lists all versions of all models."""
        context: RequestContext = request.state.context
        context.call = "models"
        authorize_all(context.principal)
        only_ready = False
        try:
            body = await self._bodies.read(context, request.state.headers, request.receive)
            if body:
                value = json.parse(body, self._dataplane.settings)
                options = present_fields(value, ("ready", "repository_name"), "body")
                only_ready = check_type(options.get("ready", False), bool, "body.ready")
                name = check_type(options.get("repository_name", ""), str, "body.repository_name")
                _check_repository(name)
        finally:
            self._dataplane.budget.release(context)
        return JSONResponse(repository_index(self._engine, only_ready))

    async def change_repository(self) -> Response:
        """Rejects to load or unload a model, as clients of Triton may request."""
        raise Unimplemented("loading and unloading are not provided; `rowcast-serve ctl` does both")

    def _check_ready(self) -> None:
        if problem := self._dataplane.problem():
            raise NotReady(problem)

    def _target(self, request: Request, model: str, version: str | None) -> Target:
        context: RequestContext = request.state.context
        context.call = "model"
        context.model = model
        authorize(context.principal, model)
        return target_of(model, version)


def _add_pages(app: FastAPI, dataplane: Dataplane) -> None:
    pages = _Pages(dataplane)
    read_only: dict[str, Callable[..., Any]] = {
        "/v2": pages.describe_server,
        "/v2/": pages.describe_server,
        LIVE: pages.live,
        READY: pages.ready,
        _MODEL: pages.describe_model,
        _VERSION: pages.describe_model,
        f"{_MODEL}/ready": pages.model_ready,
        f"{_VERSION}/ready": pages.model_ready,
    }
    for path, endpoint in read_only.items():
        app.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
    # Triton's repository API lists by POST, since the request has a body.
    app.add_api_route(
        "/v2/repository/index", pages.index, methods=["POST"], include_in_schema=False
    )
    for action in ("load", "unload"):
        app.add_api_route(
            f"/v2/repository/models/{{model}}/{action}",
            pages.change_repository,
            methods=["POST"],
            include_in_schema=False,
        )


HTTP = OtherProtocol(
    calls=re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer"),
    pages=re.compile(r"/v2(?:/.*)?"),
    start=_start,
    error=_error_response,
    add_pages=_add_pages,
    call_name=INFER,
    probes=frozenset({LIVE, READY}),
)


async def _server_live(_: Dataplane, __: bytes, ___: RequestContext) -> bytes:
    """Responds while the process should be left running."""
    return _bytes_of(pb.ServerLiveResponse(live=True))


async def _server_ready(dataplane: Dataplane, _: bytes, __: RequestContext) -> bytes:
    """Responds whether requests should be sent here."""
    return _bytes_of(pb.ServerReadyResponse(ready=not dataplane.problem()))


async def _describe_server(_: Dataplane, __: bytes, ___: RequestContext) -> bytes:
    return _bytes_of(pb.ServerMetadataResponse(**server_metadata()))


async def _model_ready(dataplane: Dataplane, request: bytes, context: RequestContext) -> bytes:
    """Responds whether a model serves requests; a model that does not exist is not ready."""
    target = _named_target(pb.ModelReadyRequest, request, context)
    ready = not dataplane.problem()
    try:
        dataplane.engine.lease(target).release()
    except ServiceError:
        ready = False
    return _bytes_of(pb.ModelReadyResponse(ready=ready))


async def _describe_model(dataplane: Dataplane, request: bytes, context: RequestContext) -> bytes:
    target = _named_target(pb.ModelMetadataRequest, request, context)
    return _bytes_of(pb.ModelMetadataResponse(**model_metadata(dataplane.engine, target)))


async def _index(dataplane: Dataplane, request: bytes, context: RequestContext) -> bytes:
    message = protobuf.parse_small(pb.RepositoryIndexRequest, request)
    authorize_all(context.principal)
    _check_repository(message.repository_name)
    models = repository_index(dataplane.engine, message.ready)
    return _bytes_of(pb.RepositoryIndexResponse(models=models))


def _named_target(message_class: type[Any], request: bytes, context: RequestContext) -> Target:
    """Returns the version that a message names, which the client may use."""
    message = protobuf.parse_small(message_class, request)
    context.model = message.name
    authorize(context.principal, message.name)
    return target_of(message.name, message.version or None)


def _bytes_of(message: Message) -> bytes:
    return bytes(message.SerializeToString())


_METHODS = {
    "ModelInfer": tensor_method(
        INFER, pb.ModelInferRequest, pb.ModelInferResponse, read_message, response_message
    ),
    "ServerLive": Method("other", _server_live, Empty, pb.ServerLiveResponse),
    "ServerReady": Method("other", _server_ready, Empty, pb.ServerReadyResponse),
    "ServerMetadata": Method("other", _describe_server, Empty, pb.ServerMetadataResponse),
    "ModelReady": Method("model", _model_ready, pb.ModelReadyRequest, pb.ModelReadyResponse),
    "ModelMetadata": Method(
        "model", _describe_model, pb.ModelMetadataRequest, pb.ModelMetadataResponse
    ),
    "RepositoryIndex": Method(
        "models", _index, pb.RepositoryIndexRequest, pb.RepositoryIndexResponse
    ),
}
"""The other methods of the protocol are not provided."""
GRPC = (grpc_service(SERVICE, _METHODS),)
