"""The OpenAPI document and the page that shows it; the assets of the page are served from here, without a CDN."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from service.codec import json
from service.codec.metadata import REQUEST_ID, SERVER_TIMING, TIMEOUT_MS, TIMEOUT_MS_MAX
from service.dataplane import Application
from service.errors import TRANSPORT_STATUS
from service.http.examples import example_bodies
from service.http.headers import JSON, PROTOBUF
from service.http.routes import MODEL_PATHS
from service.http.schemas import SCHEMAS
from service.security.principal import authorize_all

ASSETS = "/docs/assets"

Value = dict[str, Any]
_SCHEMA = "#/components/schemas/{model}"
_TEXT: Value = {"type": "string"}
_BINARY: Value = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}


def add_docs(app: FastAPI, application: Application) -> None:
    """Adds `/openapi.json`, `/docs` and the assets of that page."""

    @cache
    def common() -> Value:
        return _document(app, application)

    def openapi() -> Value:
        document, bodies = common(), example_bodies(application.engine)
        calls = {f"{path}:{name}": _call(name, path, bodies) for path in MODEL_PATHS for name in SCHEMAS}
        return document | {"paths": calls | document["paths"]}

    async def openapi_json(request: Request) -> Response:
        authorize_all(request.state.context.principal)  # the examples show the features of a model
        return Response(json.dump(app.openapi()), media_type=JSON)

    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url=f"{ASSETS[1:]}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS[1:]}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS[1:]}/favicon.png",
            swagger_ui_parameters={"defaultModelsExpandDepth": -1, "displayRequestDuration": True},
        )

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    app.add_api_route("/openapi.json", openapi_json, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
    app.mount(ASSETS, StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static"))


def _document(app: FastAPI, application: Application) -> Value:
    """Returns all but the paths of the calls."""
    limits = application.settings
    description = (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), perhaps gzip; the "
        "answer has the form of the body unless `accept` names the other. A body has one request beside its options, "
        "or a list of them in `requests`; the answer then has `results`.\n\n"
        f"Limits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, {limits.max_candidates} candidates "
        f"and {limits.max_values} values in one body, k {limits.max_k}, {limits.request_timeout_s:g} s."
    )
    document = get_openapi(title=app.title, version=app.version, description=description, routes=app.routes)
    models = [(model, "validation") for each in SCHEMAS.values() for model in each]
    _, definitions = models_json_schema(models, ref_template=_SCHEMA)  # type: ignore[arg-type]  # its literals
    document["components"]["schemas"] |= definitions["$defs"]
    if application.tokens is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _call(name: str, path: str, bodies: Value) -> Value:
    """Returns the path item of a call."""
    request, response = ({"schema": {"$ref": _SCHEMA.format(model=model.__name__)}} for model in SCHEMAS[name])
    error = {"schema": {"$ref": _SCHEMA.format(model="ErrorResponse")}}
    codes = ", ".join(f"{status.http} {code.value}" for code, status in TRANSPORT_STATUS.items())
    timing = {SERVER_TIMING: {"description": "Milliseconds by phase.", "schema": _TEXT}}
    named = [part.partition("}")[0] for part in path.split("{")[1:]]
    if name in bodies:
        request["example"] = bodies[name]
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
