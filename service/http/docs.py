"""The OpenAPI document: FastAPI's, of its routes, with the five calls, which take and return bytes
beside FastAPI.

The document contains a body of each call for the models that are served and that the client may
use, so that "Try it out" sends features that a loaded model has.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from service.codec.json import fields_of_response
from service.codec.metadata import (
    JSON,
    PROTOBUF,
    REQUEST_ID,
    SERVER_TIMING,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
)
from service.codec.stubs.message_schemas import SCHEMAS
from service.contract.messages import REQUESTS, Target
from service.dataplane import Dataplane
from service.errors import ServiceError
from service.http.documents import change_schemas, model_of, response_of, schemas_of
from service.http.error_schemas import ERRORS, ErrorResponse
from service.http.routes import MODEL_PATHS
from service.openapi import add_schemas, json_content
from service.query_strings import check_query
from service.security.principal import Principal, authorize

SCHEME = "token"
"""The name of the scheme of authentication in the document."""
MODELS_SHOWN = 20
"""Maximum number of models that have examples in the document."""
_TEXT = {"type": "string"}
_PATH_TYPES = {"version": {"type": "integer", "format": "int64", "minimum": 1}}
_TIMING = {SERVER_TIMING: {"description": "Milliseconds by phase.", "schema": _TEXT}}

_FAILURE = {
    "description": ERRORS["default"]["description"],
    "headers": ERRORS["default"]["headers"],
    **json_content(ErrorResponse.__name__),
}
_HEADERS = [
    {"name": REQUEST_ID, "in": "header", "schema": _TEXT, "description": "Returned and logged."},
    {
        "name": TIMEOUT_MS,
        "in": "header",
        "schema": {"type": "integer", "minimum": 0, "maximum": TIMEOUT_MS_MAX},
    },
]


def document_calls(app: FastAPI, dataplane: Dataplane) -> None:
    """Adds the calls, which are handled beside FastAPI, to the document of its routes.

    Their contents are JSON alone: the document cannot describe protobuf, and generated clients
    would have a union of both types.
    """
    limits = dataplane.settings
    app.description = (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), "
        "optionally compressed with gzip. The response has the content type of the body, unless "
        "`accept` names the other one. A body contains options and one request, or a list of "
        "requests in `requests`; the response then has `results`.\n\n"
        "[The page at `/`](./) sends requests from a form and shows what a model recommends.\n\n"
        f"Limits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, "
        f"{limits.max_candidates} candidates and {limits.max_values} values per body; k "
        f"{limits.max_k}; {limits.request_timeout_s:g} s per request."
    )
    security: dict[str, Any] = {}
    if dataplane.tokens is not None:
        security = {"security": [{SCHEME: []}]}
    add_schemas(app, _schemas)
    document_of_routes = app.openapi

    @cache
    def openapi() -> dict[str, Any]:
        document = document_of_routes()
        document["paths"] = _paths(security) | document["paths"]
        return document

    # As FastAPI's documentation extends a document.
    app.openapi = openapi  # type: ignore[method-assign]


def _schemas() -> dict[str, Any]:
    requests = map(model_of, REQUESTS.values())
    responses = [response_of(call, *fields_of_response(call)) for call in REQUESTS]
    return schemas_of([*requests, *responses]) | change_schemas() | SCHEMAS


def _paths(security: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the calls by path: each has three, for a model, for a version, and for a label."""
    paths = {}
    for path in MODEL_PATHS:
        parameter_names = [part.partition("}")[0] for part in path.split("{")[1:]]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _PATH_TYPES.get(name, _TEXT)}
            for name in parameter_names
        ]
        # Readers look for the calls of the current version: these stand under a tag of their own.
        tag = "calls"
        if len(parameter_names) > 1:
            tag = "calls of one version"
        for call, request in REQUESTS.items():
            operation = {
                "tags": [tag],
                "summary": " ".join((request.__doc__ or "").split()),
                # Generated clients name their functions by it: `rank`, `rank_by_version`.
                "operationId": "_by_".join([call, *parameter_names[1:]]),
                "requestBody": {"required": True, **json_content(request.body.schema)},
                "responses": {
                    "200": {
                        "description": "The response.",
                        "headers": _TIMING,
                        **json_content(f"{call.title()}Response"),
                    },
                    "default": _FAILURE,
                },
                "parameters": parameters + _HEADERS,
                **security,
            }
            paths[f"{path}:{call}"] = {"post": operation}
    # Every path has parts of its own, in which examples are written.
    return copy.deepcopy(paths)


class _Example(NamedTuple):
    """The values that the document shows of one model.

    Attributes:
      model: The name of the model.
      version: The current version.
      label: A label of a version; "": there is none.
      bodies: A JSON body by call.
    """

    model: str
    version: int
    label: str
    bodies: dict[str, dict[str, Any]]


def serve_document(app: FastAPI, dataplane: Dataplane) -> None:
    """Serves the document with examples of the loaded models, instead of FastAPI's document."""
    path = app.openapi_url or ""

    async def document(request: Request) -> JSONResponse:
        check_query(request.scope["query_string"])
        examples = _examples(dataplane, request.state.context.principal)
        return JSONResponse(_with_examples(app.openapi(), examples))

    # The first route of a path responds, which is FastAPI's own. No option replaces it alone.
    app.router.routes[:] = [
        route for route in app.router.routes if getattr(route, "path", "") != path
    ]
    app.add_route(path, document, include_in_schema=False)


def _examples(dataplane: Dataplane, principal: Principal | None) -> list[_Example]:
    """Returns the examples of models that a client may use and that have a version loaded."""
    examples: list[_Example] = []
    for model, versions in sorted(dataplane.engine.models().items()):
        # Without a current version, a request that names none has no response to show.
        current = next((state for state in versions if state.current), None)
        if current is None or len(examples) == MODELS_SHOWN:
            continue
        try:
            authorize(principal, model)
            bodies = dataplane.engine.examples(Target(model))
        except ServiceError:
            # The client may not use the model, or the version is no longer loaded.
            continue
        label = next((label for state in versions for label in state.labels), "")
        examples.append(_Example(model, current.version, label, bodies))
    return examples


def _with_examples(document: dict[str, Any], examples: list[_Example]) -> dict[str, Any]:
    """Returns a copy of the document whose calls have the bodies of the models that serve them."""
    # FastAPI caches its document, which must stay without the models of one client.
    document = copy.deepcopy(document)
    for path, item in document["paths"].items():
        for operation in item.values():
            _, _, call = path.rpartition(":")
            # Pages of models, which are read by GET, exist for every model.
            call_examples = [
                example for example in examples if call in example.bodies or "get" in item
            ]
            if not call_examples:
                continue
            first = call_examples[0]
            values = {"model": first.model, "version": first.version, "label": first.label}
            for parameter in operation.get("parameters", ()):
                if values.get(parameter["name"]):
                    parameter["example"] = values[parameter["name"]]
            if "post" in item:
                operation["requestBody"]["content"][JSON]["examples"] = {
                    example.model: {
                        "summary": f"model {example.model}",
                        "value": example.bodies[call],
                    }
                    for example in call_examples
                }
    return document
