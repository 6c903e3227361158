"""The OpenAPI document of the five calls, whose routes take and return bytes: FastAPI describes them by routes of the
same paths with typed bodies, which no request reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from service.codec.metadata import REQUEST_ID, SERVER_TIMING, TIMEOUT_MS, TIMEOUT_MS_MAX
from service.dataplane import Dataplane
from service.errors import TRANSPORT_STATUS
from service.http.headers import JSON, PROTOBUF
from service.http.routes import MODEL_PATHS
from service.http.schemas import SCHEMAS, ErrorResponse, Schema

_TEXT = {"type": "string"}
_BINARY = {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
_TIMING = {SERVER_TIMING: {"description": "Milliseconds by phase.", "schema": _TEXT}}
_CODES = ", ".join(f"{status.http} {code.value}" for code, status in TRANSPORT_STATUS.items())
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer.", "headers": _TIMING, "content": _BINARY},
    "default": {"description": _CODES, "model": ErrorResponse},
}
_HEADERS = [
    {"name": REQUEST_ID, "in": "header", "schema": _TEXT, "description": "Returned and logged."},
    {"name": TIMEOUT_MS, "in": "header", "schema": {"type": "integer", "maximum": TIMEOUT_MS_MAX}},
]


def document_calls(app: FastAPI, dataplane: Dataplane) -> None:
    """Adds the calls to the document of an application; their real routes must come before these."""
    limits = dataplane.settings
    app.description = (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), perhaps gzip; the "
        "answer has the form of the body unless `accept` names the other. A body has one request beside its options, "
        "or a list of them in `requests`; the answer then has `results`.\n\n"
        f"Limits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, {limits.max_candidates} candidates "
        f"and {limits.max_values} values in one body, k {limits.max_k}, {limits.request_timeout_s:g} s."
    )
    for path in MODEL_PATHS:
        named = [part.partition("}")[0] for part in path.split("{")[1:]]
        parameters = [
            {"name": each, "in": "path", "required": True, "schema": _TEXT} for each in named
        ]
        for name, (request, response) in SCHEMAS.items():
            app.add_api_route(
                f"{path}:{name}",
                _endpoint(request),
                methods=["POST"],
                tags=["calls" if len(named) == 1 else "calls of one version"],
                operation_id="_by_".join([name, *named[1:]]),
                summary=request.__doc__,
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
