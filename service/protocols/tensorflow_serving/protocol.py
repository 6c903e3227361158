"""TensorFlow Serving's REST API and gRPC services, on the paths and under the names that its
clients send.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import grpc
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

from service.codec import json, protobuf
from service.codec.message_fields import model_of
from service.codec.metadata import JSON, Headers, check_content_type, media_type_of
from service.dataplane import Dataplane
from service.engine.calls import Target
from service.engine.context import RequestContext
from service.engine.validation import SHOWN_CHARS
from service.errors import FieldViolation, InvalidArgument, Unimplemented
from service.grpc_api.descriptions import MethodMessages
from service.grpc_api.servicer import GrpcService
from service.http.calls import target_of
from service.http.middleware import response_of
from service.http.other_protocols import HttpCall, OtherProtocol
from service.http.routes import MODEL_PATHS
from service.protocols.exchange import TensorExchange
from service.protocols.tensorflow_serving import json_forms, messages
from service.security.principal import authorize
from tensors.stubs import tensorflow_serving_pb2 as pb

_MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[^/:]+)|/labels/(?P<label>[^/:]+))?"


def _start(dataplane: Dataplane, scope: Scope) -> HttpCall:
    """Accepts a call over HTTP."""
    headers: Headers = scope["state"]["headers"]
    accepted = {JSON}
    if "origin" not in headers:
        # Clients of TensorFlow Serving send the content type of a form, as curl does, or none.
        accepted.add(media_type_of(headers.get("content-type", "")))
    check_content_type(headers, accepted, JSON)
    context: RequestContext = scope["state"]["context"]
    # One object per request, since the response has the form of the request.
    body = json_forms.PredictBody()
    read, write = {
        "predict": (body.read, body.write),
        "classify": (json_forms.read_examples, json_forms.write_classification),
        "regress": (json_forms.read_examples, json_forms.write_regression),
    }[context.call]
    exchange = TensorExchange(
        context,
        dataplane.engine,
        read,
        write,
        # The path names the model.
        lambda _: "",
        messages.ENGINE_CALLS[context.call],
    )
    return HttpCall(exchange, lambda: [(b"content-type", JSON.encode())])


def _add_pages(app: FastAPI, dataplane: Dataplane) -> None:
    engine = dataplane.engine

    def begin(request: Request, call: str, target: Target) -> None:
        context: RequestContext = request.state.context
        context.call = call
        context.model = target.model
        authorize(context.principal, target.model)

    async def status(
        request: Request, model: str, version: str | None = None, label: str | None = None
    ) -> Response:
        target = target_of(model, version, label)
        begin(request, "model", target)
        message, details = dataplane.descriptions.model(target)
        states = messages.status_message(model, engine.models().get(model, ()), target)
        return response_of(
            request.state.headers,
            lambda: message,
            lambda: {**details, **json_forms.message_value(states)},
        )

    async def metadata(
        request: Request, model: str, version: str | None = None, label: str | None = None
    ) -> Response:
        target = target_of(model, version, label)
        begin(request, "model", target)
        with engine.lease(target) as leased:
            spec = messages.metadata_message(leased).model_spec
            signature_map = messages.signature_map(leased)
        value = {
            "model_spec": json_forms.message_value(spec),
            "metadata": {messages.SIGNATURE_DEF: json_forms.message_value(signature_map)},
        }
        return Response(json.dump(value), media_type=JSON)

    for path in MODEL_PATHS:
        # rowcast's own page has the same path: the response contains the fields of both.
        app.add_api_route(path, status, methods=["GET"], include_in_schema=False)
        page = f"{path}/metadata"
        app.add_api_route(page, metadata, methods=["GET"], include_in_schema=False)


HTTP = OtherProtocol(
    calls=re.compile(rf"{_MODEL}:(?P<call>predict|classify|regress)"),
    pages=re.compile(rf"{_MODEL}/metadata"),
    start=_start,
    error=json_forms.error_response,
    add_pages=_add_pages,
)


class _Servicer:
    """The methods of both services: serialized messages in and out."""

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates the servicer; `dataplane` executes the calls."""
        self._dataplane = dataplane
        self._engine = dataplane.engine

    async def predict(self, message: bytes, context: RequestContext) -> bytes:
        """Returns the outputs of a signature for named tensors."""
        return await self._call(
            message, context, pb.PredictRequest, messages.read_predict, messages.write_predict
        )

    async def classify(self, message: bytes, context: RequestContext) -> bytes:
        """Returns the outputs of a signature as classes, for examples."""
        return await self._call(
            message,
            context,
            pb.ExamplesRequest,
            messages.read_examples,
            messages.write_classification,
        )

    async def regress(self, message: bytes, context: RequestContext) -> bytes:
        """Returns the score of each example."""
        return await self._call(
            message,
            context,
            pb.ExamplesRequest,
            messages.read_examples,
            messages.write_regression,
        )

    async def metadata(self, message: bytes, context: RequestContext) -> bytes:
        """Describes the signatures of a version."""
        request = protobuf.parse_small(pb.GetModelMetadataRequest, message)
        target = messages.target_of(request.model_spec)
        context.model = target.model
        authorize(context.principal, target.model)
        # TensorFlow Serving has no other metadata either.
        if list(request.metadata_field) != [messages.SIGNATURE_DEF]:
            names = [name[:SHOWN_CHARS] for name in request.metadata_field[:2]]
            raise InvalidArgument(
                f"metadata_field must be one value, {messages.SIGNATURE_DEF!r}, and nothing else",
                FieldViolation("metadata_field", str(names), repr([messages.SIGNATURE_DEF])),
            )
        with self._engine.lease(target) as version:
            return bytes(messages.metadata_message(version).SerializeToString())

    async def status(self, message: bytes, context: RequestContext) -> bytes:
        """Describes the states of the versions of a model."""
        request = protobuf.parse_small(pb.GetModelStatusRequest, message)
        target = messages.target_of(request.model_spec)
        context.model = target.model
        authorize(context.principal, target.model)
        states = self._engine.models().get(target.model, ())
        return bytes(messages.status_message(target.model, states, target).SerializeToString())

    async def _call(
        self, message: bytes, context: RequestContext, request_class: Any, read: Any, write: Any
    ) -> bytes:
        exchange = TensorExchange(
            context,
            self._engine,
            read,
            write,
            partial(model_of, request_class.DESCRIPTOR),
            messages.ENGINE_CALLS[context.call],
        )
        (response,) = await self._dataplane.call(exchange, message, True, None, context)
        return response


def _rejecting_method(remedy: str) -> Any:
    """Returns a method that rejects every call, with a remedy."""

    async def reject(_message: bytes, _context: RequestContext) -> bytes:
        raise Unimplemented(f"the service does not have this method; {remedy}")

    return reject


def _add_prediction_service(dataplane: Dataplane, server: Any) -> None:
    servicer = _Servicer(dataplane)
    methods = {
        "Predict": servicer.predict,
        "Classify": servicer.classify,
        "Regress": servicer.regress,
        "GetModelMetadata": servicer.metadata,
        "MultiInference": _rejecting_method("send its tasks as Classify and Regress"),
    }
    _add_methods(server, PREDICTION_SERVICE, methods)


def _add_model_service(dataplane: Dataplane, server: Any) -> None:
    remedy = "models are found under --root, and `rowcast-serve ctl` pins and labels versions"
    methods = {
        "GetModelStatus": _Servicer(dataplane).status,
        "HandleReloadConfigRequest": _rejecting_method(remedy),
    }
    _add_methods(server, MODEL_SERVICE, methods)


def _add_methods(server: Any, service: str, methods: Mapping[str, Any]) -> None:
    """Registers methods that take and return serialized messages."""
    # A generated function would register the service under the name of rowcast's own package.
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
GRPC = (
    GrpcService(
        PREDICTION_SERVICE,
        {
            "Predict": "predict",
            "Classify": "classify",
            "Regress": "regress",
            "GetModelMetadata": "model",
            "MultiInference": "other",
        },
        _add_prediction_service,
        {
            "Predict": MethodMessages.of(pb.PredictRequest, pb.PredictResponse),
            "Classify": MethodMessages.of(pb.ExamplesRequest, pb.ClassificationResponse),
            "Regress": MethodMessages.of(pb.ExamplesRequest, pb.RegressionResponse),
            "GetModelMetadata": MethodMessages.of(
                pb.GetModelMetadataRequest, pb.GetModelMetadataResponse
            ),
        },
    ),
    GrpcService(
        MODEL_SERVICE,
        {"GetModelStatus": "model", "HandleReloadConfigRequest": "other"},
        _add_model_service,
        {"GetModelStatus": MethodMessages.of(pb.GetModelStatusRequest, pb.GetModelStatusResponse)},
    ),
)
