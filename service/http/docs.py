"""The OpenAPI document of the five calls, which take and return bytes: FastAPI describes them by
routes of the same paths with typed bodies, which no request reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from service.codec.metadata import (
    JSON,
    PROTOBUF,
    REQUEST_ID,
    SERVER_TIMING,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
)
from service.dataplane import Dataplane
from service.errors import TRANSPORT_STATUS
from service.http.routes import MODEL_PATHS
from service.http.schemas import SCHEMAS, ErrorResponse, Schema

_TEXT = {"type": "string"}
_PATH_TYPES = {"version": {"type": "integer", "minimum": 1}}
_BINARY = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
_TIMING = {SERVER_TIMING: {"description": "Milliseconds by phase.", "schema": _TEXT}}
_CODES = ", ".join(f"{status.http} {code.value}" for code, status in TRANSPORT_STATUS.items())
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer.", "headers": _TIMING, "content": _BINARY},
    "default": {"description": _CODES, "model": ErrorResponse},
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
    """Adds the calls to the document of an application, which no call reaches."""
    limits = dataplane.settings
    app.description = (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), "
        "optionally compressed with gzip. The response has the content type of the body, unless "
        "`accept` names the other one. A body contains options and one request, or a list of "
        "requests in `requests`; the response then has `results`.\n\n"
        f"Limits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, "
        f"{limits.max_candidates} candidates and {limits.max_values} values per body; k "
        f"{limits.max_k}; {limits.request_timeout_s:g} s per request."
    )
    for path in MODEL_PATHS:
        named = [part.partition("}")[0] for part in path.split("{")[1:]]
        parameters = [
            {"name": each, "in": "path", "required": True, "schema": _PATH_TYPES.get(each, _TEXT)}
            for each in named
        ]
        for name, (request, response) in SCHEMAS.items():
            app.add_api_route(
                f"{path}:{name}",
                _endpoint(request),
                methods=["POST"],
                tags=["calls" if len(named) == 1 else "calls of one version"],
                operation_id="_by_".join([name, *named[1:]]),
                summary=" ".join((request.__doc__ or "").split()),
                response_model=response,
                responses=_RESPONSES,
                openapi_extra={
                    "parameters": parameters + _HEADERS,
                    "requestBody": {"content": _BINARY},
                },
            )


def _endpoint(request: type[Schema]) -> Callable[..., None]:
    def call(body: Any) -> None: ...

    call.__annotations__["body"] = request
    return call
