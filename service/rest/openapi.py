"""The OpenAPI document: every path, every field, and worked examples. Pure: values in, a JSON value out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from service.errors import ANSWERS, Code
from service.rest.examples import Example
from service.rest.schemas import JSON, PROTOBUF
from service.settings import ServiceSettings
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TIMEOUT_MS_MAX
from service.wire.operations import OPERATIONS
from service.wire.timings import SERVER_TIMING

Value = dict[str, Any]

_INTEGER: Value = {"type": "integer"}
_STRING: Value = {"type": "string"}
_NUMBER: Value = {"type": "number"}
_ID: Value = {"oneOf": [_INTEGER, _STRING], "description": "Integers beyond 2^53 travel as decimal strings."}
_IDS: Value = {"type": "array", "items": _ID}
_NAMES: Value = {"type": "array", "items": _STRING}
_FEATURES: Value = {
    "type": "object",
    "description": "By feature name: a scalar; a list (bag, sequence, dense); or {ids, weights} of a weighted bag.",
    "additionalProperties": True,
}
_SUMMARIES = {
    "retrieve": "Nearest candidates for a query's features, for a vector, or for a candidate's id",
    "rank": "Scores of candidates for a context",
    "recommend": "Retrieve, then rank what was retrieved, with one version of the model",
    "embed": "A tower's output for features",
    "lookup": "Rows of a feature's table by id",
}
_CALLS = "Open one: it has a request for the model that is loaded, and the answer that it gave just now."
_OF_VERSION = "calls of one version"
_FORMULA: Value = {
    **_STRING,
    "description": "Over outputs, gives the score: click^0.7 * like^0.3. Left out: the model's own.",
}
_CONTEXT_ID: Value = {**_ID, "description": "Whose stored features are taken where none are sent."}
_EXCLUDE: Value = {**_IDS, "description": "Candidates never returned."}
_OPTIONS: dict[str, Value] = {
    "retrieve": {
        "k": {**_INTEGER, "default": 10},
        "attributes": _NAMES,
        "index": _STRING,
        "exact": {"type": "boolean", "description": "Search exactly, whatever the index."},
        "filter": {"type": "object", "description": "In the contract; answered UNIMPLEMENTED for now."},
    },
    "rank": {
        "heads": {**_NAMES, "description": "Outputs returned beside the score."},
        "k": {**_INTEGER, "description": "Only the k best, best first; 0: all, in the order sent.", "default": 0},
        "tower": _STRING,
        "formula": _FORMULA,
    },
    "recommend": {
        "k": {**_INTEGER, "default": 10},
        "candidates": {**_INTEGER, "description": "How many are retrieved and ranked; 0: max(100, 10 k)."},
        "attributes": _NAMES,
        "index": _STRING,
        "tower": _STRING,
        "formula": _FORMULA,
    },
    "embed": {"tower": _STRING},
    "lookup": {"feature": _STRING, "ids": _IDS},
}
_PARTS: dict[str, Value] = {
    "retrieve": {
        "features": _FEATURES,
        "vector": {"type": "array", "items": _NUMBER},
        "id": _ID,
        "context_id": _CONTEXT_ID,
        "exclude": _EXCLUDE,
    },
    "rank": {
        "context": _FEATURES,
        "context_id": _CONTEXT_ID,
        "candidates": _IDS,
        "features": {"type": "object", "description": "By feature name: one value per candidate, in their order."},
    },
    "recommend": {"features": _FEATURES, "context_id": _CONTEXT_ID, "exclude": _EXCLUDE},
    "embed": {"features": _FEATURES},
    "lookup": {},
}
_NEIGHBOR: Value = {
    "type": "object",
    "properties": {"id": _ID, "score": _NUMBER, "retrieval_score": _NUMBER, "attributes": {"type": "object"}},
}
_NEIGHBORS: Value = {"neighbors": {"type": "array", "items": _NEIGHBOR}}
_NUMBERS: Value = {"type": "array", "items": _NUMBER}
_RESULTS: dict[str, Value] = {
    "retrieve": _NEIGHBORS,
    "rank": {
        "ids": {**_IDS, "nullable": True},
        "scores": _NUMBERS,
        "positions": {"type": "array", "items": _INTEGER, "description": "Place among the candidates as sent."},
        "heads": {"type": "object", "additionalProperties": _NUMBERS},
    },
    "recommend": _NEIGHBORS,
    "embed": {"vector": _NUMBERS},
    "lookup": {
        "table": _STRING,
        "vectors": {"type": "array", "items": _NUMBERS},
        "found": {"type": "array", "items": {"type": "boolean"}},
    },
}


def document(examples: Mapping[str, Example], settings: ServiceSettings, product_version: str, url: str) -> Value:
    """Returns the document.

    Args:
      examples: by call.
      settings: whose limits are told.
      product_version: of the service.
      url: where the caller reached the service, without a slash at its end; for the curl lines.
    """
    paths: Value = {}
    for name in OPERATIONS:
        operation = _operation(name, examples.get(name), url)
        model = _path("model", examples[name].model if name in examples else None)
        paths[f"/v1/models/{{model}}:{name}"] = {"post": operation, "parameters": [model]}
        for by in ("version", "label"):
            paths[f"/v1/models/{{model}}/{by}s/{{{by}}}:{name}"] = {
                "post": {**operation, "tags": [_OF_VERSION], "operationId": f"{name}_by_{by}"},
                "parameters": [model, _path(by)],
            }
    return {
        "openapi": "3.0.3",
        "info": {"title": "rowcast", "version": product_version, "description": _introduction(settings)},
        "tags": [
            {"name": "calls", "description": _CALLS},
            {"name": "models"},
            {"name": "health"},
            {"name": _OF_VERSION},
        ],
        "paths": paths | _other_paths(),
        "components": {"schemas": {"Error": _error_schema()}} | _schemes(settings),
        "security": [{"token": []}] if settings.tokens is not None else [],
    }


def _schemes(settings: ServiceSettings) -> Value:
    """How callers say who they are."""
    return {} if settings.tokens is None else {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}


def _introduction(settings: ServiceSettings) -> str:
    return (
        f"Bodies are JSON (`{JSON}`) or the protobuf messages of the same calls (`{PROTOBUF}`); the answer has the "
        f"form of the body unless `accept` names the other. Bodies may be gzip. A body has one request beside its "
        f"options, or a list of them in `requests`; the answer then has `results`.\n\n"
        f"Limits: body {settings.body_bytes_max} bytes, {settings.queries_max} requests in a list, k "
        f"{settings.k_max}, {settings.candidates_max} candidates ranked and {settings.ids_max} values in one body, "
        f"{settings.timeout_s:g} s."
    )


def _operation(name: str, example: Example | None, url: str) -> Value:
    options, part, result = _OPTIONS[name], _PARTS[name], _RESULTS[name]
    several: Value = {"type": "array", "items": {"type": "object", "properties": part, "additionalProperties": False}}
    body: Value = {
        "type": "object",
        "additionalProperties": False,
        "properties": options | part | ({"requests": several} if part else {}),
    }
    answer: Value = {
        "type": "object",
        "properties": {"model": _STRING, "version": _INTEGER}
        | ({"searched": _INTEGER} if name == "retrieve" else {})
        | result
        | ({"results": {"type": "array", "items": {"type": "object", "properties": result}}} if part else {}),
    }
    asked: Value = {"schema": body}
    answered: Value = {"schema": answer}
    description = ""
    if example is not None:
        asked["example"] = example.body
        if example.status == 200:
            answered["example"] = example.answer
        description = _worked(name, example, url)
    binary: Value = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["calls"],
        "operationId": name,
        "summary": _SUMMARIES[name],
        "description": description,
        "parameters": [
            _header(REQUEST_ID, "Returned and logged."),
            _header(TIMEOUT_MS, f"Milliseconds, 0 to {TIMEOUT_MS_MAX}."),
        ],
        "requestBody": {"required": True, "content": {JSON: asked, PROTOBUF: binary}},
        "responses": {"200": _answer({JSON: answered, PROTOBUF: binary})} | _errors(),
    }


def _answer(content: Value) -> Value:
    told = "Milliseconds by phase: `queue;dur=0.012, compute;dur=0.103`."
    timing = {"description": told, "schema": {"type": "string"}}
    return {"description": "The answer.", "headers": {SERVER_TIMING: timing}, "content": content}


def _worked(name: str, example: Example, url: str) -> str:
    body = orjson.dumps(example.body).decode().replace("'", "'\\''")
    lines = f"curl -s '{url}/v1/models/{example.model}:{name}' \\\n  -H 'content-type: {JSON}' \\\n  -d '{body}'"
    text = f"```sh\n{lines}\n```\n"
    if example.answer is not None:
        answer = orjson.dumps(example.answer, option=orjson.OPT_INDENT_2).decode()
        text += f"\nanswers\n\n```json\n{answer}\n```\n"
    return text


def _other_paths() -> Value:
    def get(tag: str, summary: str, code: Code = Code.NOT_FOUND) -> Value:
        found = {"200": {"description": summary}, "default": _failure("Not so.", code.value)}
        return {"tags": [tag], "summary": summary, "responses": found}

    one = "Inputs of every call; what reads them; towers, parts and forms; tables, indexes, corpora and contexts"
    return {
        "/v1/models": {"get": get("models", "Every model with its versions and their states")},
        "/v1/models/{model}": {"get": get("models", one), "parameters": [_path("model")]},
        **{
            f"/v1/models/{{model}}/{by}s/{{{by}}}": {
                "get": get("models", one),
                "parameters": [_path("model"), _path(by)],
            }
            for by in ("version", "label")
        },
        "/livez": {"get": get("health", "The process should be left running")},
        "/readyz": {"get": get("health", "Callers should be sent here", Code.NOT_READY)},
        "/metrics": {"get": get("health", "Metrics in the text form of Prometheus")},
    }


def _errors() -> Value:
    codes: dict[int, list[str]] = {}
    for code in Code:
        codes.setdefault(ANSWERS[code].http, []).append(code.value)
    return {str(status): _failure(" or ".join(names), names[0]) for status, names in sorted(codes.items())}


def _failure(description: str, code: str) -> Value:
    example = {"error": {"code": code, "message": "what, which value, what was expected", "request_id": "of the call"}}
    error: Value = {"schema": {"$ref": "#/components/schemas/Error"}, "example": example}
    return {"description": description, "content": {JSON: error}}


def _error_schema() -> Value:
    told = {"code": {**_STRING, "enum": [code.value for code in Code]}, "message": _STRING, "request_id": _STRING}
    return {"type": "object", "properties": {"error": {"type": "object", "properties": told}}}


def _path(name: str, example: str | None = None) -> Value:
    schema = _INTEGER if name == "version" else _STRING
    told = {"name": name, "in": "path", "required": True, "schema": schema}
    return told if example is None else {**told, "example": example}


def _header(name: str, description: str) -> Value:
    return {"name": name, "in": "header", "schema": _STRING, "description": description}
