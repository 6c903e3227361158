"""The OpenAPI document: FastAPI's, of the routes of a service, with the five calls, which take and
return bytes beside FastAPI. A service adds its limits, its security, and examples of its models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openapi_schemas import call_schemas, change_schemas, message_schemas

from service.app import Worker
from service.codec.metadata import (
    JSON,
    PROTOBUF,
    REQUEST_ID,
    SERVER_TIMING,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
)
from service.config import ServiceSettings
from service.contract.messages import REQUESTS
from service.coordinator import Coordinator
from service.http.error_schemas import ERRORS, ErrorResponse
from service.http.routes import MODEL_PATHS
from service.openapi import json_content

SUFFIX = ".json"
DESCRIPTION = (
    f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`), "
    "optionally compressed with gzip. The response has the content type of the body, unless "
    "`accept` names the other one. A body contains options and one request, or a list of "
    "requests in `requests`; the response then has `results`.\n\n"
    "[The page at `/`](./) sends requests from a form and shows what a model recommends."
)
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


def page() -> str:
    """Returns the document."""
    worker = Worker(ServiceSettings(root=Path()), Coordinator(), grpc_port=None)
    document = worker.http_app().openapi()
    document["info"]["description"] = DESCRIPTION
    document["paths"] = _paths() | document["paths"]
    schemas = call_schemas() | change_schemas() | message_schemas()
    schemas |= document["components"]["schemas"]
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _paths() -> dict[str, Any]:
    """Returns the calls by path: each has three, for a model, for a version, and for a label.

    Their contents are JSON alone: the document cannot describe protobuf, and generated clients
    would have a union of both types.
    """
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
            }
            paths[f"{path}:{call}"] = {"post": operation}
    return paths
