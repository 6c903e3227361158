"""The protocol over both transports: its paths over HTTP, and its methods over gRPC.

What describes the service and its models is one JSON value for both.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version as installed_version
from typing import Any, NamedTuple

import numpy as np
from fastapi import FastAPI, Request
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from service.codec import json, protobuf
from service.codec.metadata import JSON, JSON_LENGTH, Headers, check_content_type
from service.config import ServiceSettings
from service.contract.columns import check_type, present_fields, shown
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.errors import NotFound, NotReady, ServiceError, Unimplemented
from service.http.calls import BodyReader, target_of
from service.http.other_protocols import HttpCall, OtherProtocol
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
from service.protocols.signatures import find_signature
from service.security.principal import authorize, authorize_all
from tensors.open_inference import BYTES, NAMES
from tensors.signatures import Tensor
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


def _ready(dataplane: Dataplane, _: Target) -> dict[str, Any]:
    """Returns that requests should be sent here; raises NotReady with the reason why not."""
    if problem := dataplane.problem():
        raise NotReady(problem)
    return {"live": True, "ready": True}


def _server(_: Dataplane, __: Target) -> dict[str, Any]:
    """Returns the name, the version and the extensions of the service."""
    version = installed_version("rowcast")
    return {"name": "rowcast", "version": version, "extensions": list(EXTENSIONS)}


def _model_ready(dataplane: Dataplane, target: Target) -> dict[str, Any]:
    """Returns that a version serves requests; raises ServiceError with the reason why not."""
    with dataplane.engine.lease(target) as served:
        name = served.model
    _ready(dataplane, target)
    return {"name": name, "ready": True}


def _model(dataplane: Dataplane, target: Target) -> dict[str, Any]:
    """Returns the inputs and outputs of the default signature of a version, and the versions of
    its model that requests can name.
    """
    # The protocol describes one signature per model. Others are chosen by a parameter.
    with dataplane.engine.lease(target) as version:
        signature = find_signature(version, "")
        # Only loaded versions can be named by requests.
        states = dataplane.engine.models().get(version.model, ())
        return {
            "name": version.model,
            "versions": [str(state.version) for state in states if state.is_loaded],
            "platform": PLATFORM,
            "inputs": [_tensor_metadata(tensor) for tensor in signature.tensors],
            "outputs": [_tensor_metadata(tensor) for tensor in signature.outputs],
        }


def _versions(engine: Engine, ready: bool) -> list[dict[str, str]]:
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
        datatype = NAMES[np.dtype(tensor.dtype)]
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


class _Page(NamedTuple):
    """What describes the service or a model over both transports.

    Attributes:
      value: Returns the JSON value, of whose fields the message has some; takes the model and
        version that are named.
      paths: The paths over HTTP.
      request: The message over gRPC, which may name a model and version.
      response: The message of the response.
    """

    value: Callable[[Dataplane, Target], dict[str, Any]]
    paths: tuple[str, ...]
    request: type[Message]
    response: type[Message]

    @property
    def call(self) -> str:
        """The name of the call, as in metrics."""
        if "name" in self.request.DESCRIPTOR.fields_by_name:
            return "model"
        return "other"

    async def respond(self, dataplane: Dataplane, body: bytes, context: RequestContext) -> bytes:
        """Responds over gRPC."""
        target = Target()
        if self.call == "model":
            message: Any = protobuf.parse_small(self.request, body)
            target = _permitted(context, message.name, message.version or None)
        fields = self.response.DESCRIPTOR.fields_by_name
        try:
            value = self.value(dataplane, target)
        except ServiceError:
            # A model that does not exist, or a service that drains, is not ready.
            if "ready" not in fields:
                raise
            value = {"ready": False}
        content = {name: value[name] for name in fields if name in value}
        return bytes(self.response(**content).SerializeToString())


def _permitted(context: RequestContext, model: str, version: str | None) -> Target:
    """Returns a version that is named, which the client may use."""
    context.call = "model"
    context.model = model
    authorize(context.principal, model)
    return target_of(model, version)


_PAGES = {
    "ServerLive": _Page(lambda _, __: {"live": True}, (LIVE,), Empty, pb.ServerLiveResponse),
    "ServerReady": _Page(_ready, (READY,), Empty, pb.ServerReadyResponse),
    "ServerMetadata": _Page(_server, ("/v2", "/v2/"), Empty, pb.ServerMetadataResponse),
    "ModelReady": _Page(
        _model_ready,
        (f"{_MODEL}/ready", f"{_VERSION}/ready"),
        pb.ModelReadyRequest,
        pb.ModelReadyResponse,
    ),
    "ModelMetadata": _Page(
        _model, (_MODEL, _VERSION), pb.ModelMetadataRequest, pb.ModelMetadataResponse
    ),
}
"""The pages by the names of their methods."""


def _add_pages(app: FastAPI, dataplane: Dataplane) -> None:
    bodies = BodyReader(dataplane)

    def endpoint_of(page: _Page) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            target = Target()
            if page.call == "model":
                names = request.path_params
                target = _permitted(request.state.context, names["model"], names.get("version"))
            return JSONResponse(page.value(dataplane, target))

        return endpoint

    async def index(request: Request) -> Response:
        """Lists all versions of all models."""
        context: RequestContext = request.state.context
        context.call = "models"
        authorize_all(context.principal)
        only_ready = False
        try:
            body = await bodies.read(context, request.state.headers, request.receive)
            if body:
                value = json.parse(body, dataplane.settings)
                options = present_fields(value, ("ready", "repository_name"), "body")
                only_ready = check_type(options.get("ready", False), bool, "body.ready")
                name = check_type(options.get("repository_name", ""), str, "body.repository_name")
                _check_repository(name)
        finally:
            dataplane.budget.release(context)
        return JSONResponse(_versions(dataplane.engine, only_ready))

    async def change_repository() -> Response:
        """Rejects to load or unload a model, as clients of Triton may request."""
        raise Unimplemented("loading and unloading are not provided; `rowcast-serve ctl` does both")

    for page in _PAGES.values():
        for path in page.paths:
            methods = ["GET", "HEAD"]
            app.add_api_route(path, endpoint_of(page), methods=methods, include_in_schema=False)
    # Triton's repository API lists by POST, since the request has a body.
    posted: dict[str, Callable[..., Any]] = {
        "index": index,
        "models/{model}/load": change_repository,
        "models/{model}/unload": change_repository,
    }
    for path, endpoint in posted.items():
        app.add_api_route(
            f"/v2/repository/{path}", endpoint, methods=["POST"], include_in_schema=False
        )


HTTP = OtherProtocol(
    calls=re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer"),
    pages=re.compile(r"/v2(?:/.*)?"),
    start=_start,
    add_pages=_add_pages,
    call_name=INFER,
    probes=frozenset({LIVE, READY}),
)


async def _index(dataplane: Dataplane, body: bytes, context: RequestContext) -> bytes:
    message = protobuf.parse_small(pb.RepositoryIndexRequest, body)
    authorize_all(context.principal)
    _check_repository(message.repository_name)
    index = pb.RepositoryIndexResponse(models=_versions(dataplane.engine, message.ready))
    return bytes(index.SerializeToString())


_METHODS = {
    "ModelInfer": tensor_method(
        INFER, pb.ModelInferRequest, pb.ModelInferResponse, read_message, response_message
    ),
    "RepositoryIndex": Method(
        "models", _index, pb.RepositoryIndexRequest, pb.RepositoryIndexResponse
    ),
    **{
        name: Method(page.call, page.respond, page.request, page.response)
        for name, page in _PAGES.items()
    },
}
"""The other methods of the protocol are not provided."""
GRPC = (grpc_service(SERVICE, _METHODS),)
