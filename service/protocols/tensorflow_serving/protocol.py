"""TensorFlow Serving's REST API and gRPC services, on the paths and under the names that its
clients send.
"""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

from service.codec import json, protobuf
from service.codec.metadata import JSON, Headers, check_content_type, media_type_of
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.engine.validation import SHOWN_CHARS
from service.errors import FieldViolation, InvalidArgument
from service.http.calls import target_of
from service.http.middleware import response_of
from service.http.other_protocols import HttpCall, OtherProtocol
from service.http.routes import MODEL_PATHS
from service.protocols.exchange import CallForm, TensorExchange
from service.protocols.grpc_methods import Method, grpc_service, rejecting_method, tensor_method
from service.protocols.tensorflow_serving import json_forms, messages
from service.security.principal import authorize
from tensors.stubs import tensorflow_serving_pb2 as pb

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
CLASSIFIED = ("rank", "retrieve")
"""The calls of the engine whose results `classify` can return."""
REGRESSED = ("rank",)
"""The calls of the engine whose results `regress` can return."""
_FORMS = {
    "predict": CallForm(json_forms.read_predict, json_forms.write_predict),
    "classify": CallForm(
        json_forms.read_examples, json_forms.write_classification, computed=CLASSIFIED
    ),
    "regress": CallForm(json_forms.read_examples, json_forms.write_regression, computed=REGRESSED),
}
"""The calls over HTTP, whose paths name the model."""
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
    exchange = TensorExchange(context, dataplane.engine, _FORMS[context.call])
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
    add_pages=_add_pages,
)


async def _metadata(dataplane: Dataplane, message: bytes, context: RequestContext) -> bytes:
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
    with dataplane.engine.lease(target) as version:
        return bytes(messages.metadata_message(version).SerializeToString())


async def _status(dataplane: Dataplane, message: bytes, context: RequestContext) -> bytes:
    """Describes the states of the versions of a model."""
    request = protobuf.parse_small(pb.GetModelStatusRequest, message)
    target = messages.target_of(request.model_spec)
    context.model = target.model
    authorize(context.principal, target.model)
    states = dataplane.engine.models().get(target.model, ())
    return bytes(messages.status_message(target.model, states, target).SerializeToString())


_PREDICTION_METHODS = {
    "Predict": tensor_method(
        "predict",
        pb.PredictRequest,
        pb.PredictResponse,
        messages.read_predict,
        messages.predict_message,
    ),
    "Classify": tensor_method(
        "classify",
        pb.ExamplesRequest,
        pb.ClassificationResponse,
        messages.read_example_request,
        messages.classification_message,
        CLASSIFIED,
    ),
    "Regress": tensor_method(
        "regress",
        pb.ExamplesRequest,
        pb.RegressionResponse,
        messages.read_example_request,
        messages.regression_message,
        REGRESSED,
    ),
    "GetModelMetadata": Method(
        "model", _metadata, pb.GetModelMetadataRequest, pb.GetModelMetadataResponse
    ),
    "MultiInference": rejecting_method("send its tasks as Classify and Regress"),
}
_MODEL_METHODS = {
    "GetModelStatus": Method("model", _status, pb.GetModelStatusRequest, pb.GetModelStatusResponse),
    "HandleReloadConfigRequest": rejecting_method(
        "models are found under --root, and `rowcast-serve ctl` pins and labels versions"
    ),
}
GRPC = (
    grpc_service(PREDICTION_SERVICE, _PREDICTION_METHODS),
    grpc_service(MODEL_SERVICE, _MODEL_METHODS),
)
