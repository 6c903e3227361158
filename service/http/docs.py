"""The OpenAPI document: FastAPI's own, with the five calls added, whose routes take and return bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.codec.metadata import REQUEST_ID, SERVER_TIMING, TIMEOUT_MS, TIMEOUT_MS_MAX
from service.dataplane import Application
from service.errors import TRANSPORT_STATUS
from service.http.headers import JSON, PROTOBUF
from service.http.routes import MODEL_PATHS
from service.http.schemas import SCHEMAS

Value = dict[str, Any]
_SCHEMA = "#/components/schemas/{model}"
_TEXT: Value = {"type": "string"}
_BINARY: Value = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}


def document_calls(app: FastAPI, application: Application) -> None:
    """Adds the calls to the document of an application."""
    limits = application.settings
    app.description = (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), perhaps gzip; the "
        "answer has the form of the body unless `accept` names the other. A body has one request beside its options, "
        "or a list of them in `requests`; the answer then has `results`.\n\n"
        f"Limits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, {limits.max_candidates} candidates "
        f"and {limits.max_values} values in one body, k {limits.max_k}, {limits.request_timeout_s:g} s."
    )

    @cache
    def openapi() -> Value:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        models = [(model, "validation") for each in SCHEMAS.values() for model in each]
        _, definitions = models_json_schema(models, ref_template=_SCHEMA)  # type: ignore[arg-type]  # its literals
        document["components"]["schemas"] |= definitions["$defs"]
        if application.tokens is not None:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        document["paths"] = {f"{at}:{name}": _call(name, at) for at in MODEL_PATHS for name in SCHEMAS} | document[
            "paths"
        ]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _call(name: str, path: str) -> Value:
    """Returns the path item of a call."""
    request, response = ({"schema": {"$ref": _SCHEMA.format(model=model.__name__)}} for model in SCHEMAS[name])
    error = {"schema": {"$ref": _SCHEMA.format(model="ErrorResponse")}}
    codes = ", ".join(f"{status.http} {code.value}" for code, status in TRANSPORT_STATUS.items())
    timing = {SERVER_TIMING: {"description": "Milliseconds by phase.", "schema": _TEXT}}
    named = [part.partition("}")[0] for part in path.split("{")[1:]]
    return {
        "parameters": [{"name": each, "in": "path", "required": True, "schema": _TEXT} for each in named]
        + [
            {"name": REQUEST_ID, "in": "header", "schema": _TEXT, "description": "Returned and logged."},
            {"name": TIMEOUT_MS, "in": "header", "schema": {"type": "integer", "maximum": TIMEOUT_MS_MAX}},
        ],
        "post": {
            "tags": ["calls" if len(named) == 1 else "calls of one version"],
            "operationId": "_by_".join([name, *named[1:]]),
            "summary": SCHEMAS[name][0].__doc__,
            "requestBody": {"required": True, "content": {JSON: request, **_BINARY}},
            "responses": {
                "200": {"description": "The answer.", "headers": timing, "content": {JSON: response, **_BINARY}},
                "default": {"description": codes, "content": {JSON: error}},
            },
        },
    }
