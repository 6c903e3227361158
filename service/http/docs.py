"""Serves the OpenAPI document: the file of the public API, with what only a running service knows.

The document contains a body of each call for the models that are served and that the client may
use, so that "Try it out" sends features that a loaded model has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from service.codec.metadata import JSON
from service.contract.messages import Target
from service.dataplane import Dataplane
from service.errors import ServiceError
from service.openapi import read_document
from service.query_strings import check_query
from service.security.principal import Principal, authorize

MODELS_SHOWN = 20
"""Maximum number of models that have examples in the document."""


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
        content = document_of(dataplane)
        _add_examples(content, examples)
        return JSONResponse(content)

    # The first route of a path responds, which is FastAPI's own. No option replaces it alone.
    app.router.routes[:] = [
        route for route in app.router.routes if getattr(route, "path", "") != path
    ]
    app.add_route(path, document, include_in_schema=False)


def document_of(dataplane: Dataplane) -> dict[str, Any]:
    """Returns the document with the limits of a service, and with its tokens if it has some."""
    document = read_document()
    limits = dataplane.settings
    document["info"]["description"] += (
        f"\n\nLimits: {limits.max_request_bytes} bytes, {limits.max_queries} requests, "
        f"{limits.max_candidates} candidates and {limits.max_values} values per body; k "
        f"{limits.max_k}; {limits.request_timeout_s:g} s per request."
    )
    if dataplane.tokens is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for item in document["paths"].values():
            for operation in item.values():
                operation["security"] = [{"token": []}]
    return document


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


def _add_examples(document: dict[str, Any], examples: list[_Example]) -> None:
    """Adds to each call of a document the bodies of the models that serve it."""
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
