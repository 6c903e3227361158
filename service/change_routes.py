"""The routes that change rows, candidates and contexts, on whichever address they are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from bundle.changes.log import framed
from bundle.changes.records import Action, Kind
from bundle.changes.segments import PART_BYTES
from service.change_schemas import CHANGE_SCHEMAS, ChangeResponse
from service.changes.copying import SEQUENCE_HEADER
from service.changes.follower import Changes
from service.changes.requests import ChangeRequest
from service.codec import json
from service.codec.change_messages import change_message, read_change_message
from service.codec.changes import ACTIONS, change_value, read_change
from service.codec.metadata import PROTOBUF, accepts_protobuf, is_protobuf
from service.config import ServiceSettings
from service.engine.calls import Target
from service.errors import FieldViolation, InvalidArgument
from service.openapi import Int64, typed_endpoint

_BYTES = "application/octet-stream"
_BYTES_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes.",
        "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}},
    }
}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_SHOWN_CHARACTERS = 80
"""Number of characters of a rejected value that its message repeats."""
_SUMMARIES = {
    "upsert": "Add {kind}, or replace those with the same ids",
    "delete": "Delete {kind}",
    "attributes": "Change attributes of {kind}",
}


def change_routes(
    changes: Changes,
    settings: ServiceSettings,
    authorize: Callable[[Request, str], object],
    read_body: Callable[[Request], Awaitable[bytes]],
    responses: dict[int | str, dict[str, Any]] | None = None,
) -> APIRouter:
    """Returns a route for each action on rows, candidates and contexts.

    Args:
      changes: Makes the changes.
      settings: The limits of bodies.
      authorize: Raises if the client of a request may not change a model.
      read_body: Returns the body of a request.
      responses: What the document says of failures; None: what it says of every route.
    """
    router = APIRouter(prefix="/v1/models/{model}", tags=["changes"])

    def add(kind: Kind, action: Action) -> None:
        async def change(request: Request, model: str) -> Any:
            # Before the body is read, which may have megabytes.
            authorize(request, model)
            body = await read_body(request)
            target = Target(model)
            if is_protobuf(request.headers):
                target, change_request = read_change_message(body, settings)
                target = _target_of(target, change_request, (model, kind, action))
            else:
                change_request = read_change(kind, action, json.parse(body, settings))
            # In a thread: the change waits for the disk and, with a tower, for a computation.
            result = await run_in_threadpool(changes.change, target, change_request)
            if accepts_protobuf(request.headers):
                content = change_message(result).SerializeToString()
                return Response(content, media_type=PROTOBUF)
            return change_value(result)

        # The first route serves. The second one, which is never reached, describes the body to the
        # OpenAPI document: the framework would parse it before the request is authorized.
        path = f"/{kind}/{action}"
        router.post(path, name=path[1:], include_in_schema=False)(change)
        router.post(
            path,
            operation_id=_operation_id(kind, action),
            summary=_SUMMARIES[action].format(kind=kind),
            response_model=ChangeResponse,
            responses=responses,
            openapi_extra={"parameters": [_MODEL]},
        )(typed_endpoint(CHANGE_SCHEMAS[kind, action]))

    for kind, actions in ACTIONS.items():
        for action in actions:
            add(kind, action)

    copies = (responses or {}) | _BYTES_RESPONSE

    @router.get(
        "/changes/records",
        operation_id="get_change_records",
        summary="Get records of a change log",
        response_class=Response,
        responses=copies,
    )
    async def get_records(
        request: Request, model: str, sequence: Int64, checksum: Int64
    ) -> Response:
        authorize(request, model)
        records, last = await run_in_threadpool(changes.after, model, sequence, checksum)
        headers = {SEQUENCE_HEADER: str(last)}
        return Response(framed(records), media_type=_BYTES, headers=headers)

    @router.get(
        "/changes/segments/{segment}",
        operation_id="get_change_segment",
        summary="Get a part of a file of a segment of changed candidates",
        response_class=Response,
        responses=copies,
    )
    async def get_segment(
        request: Request,
        model: str,
        segment: str,
        file: str,
        offset: Annotated[Int64, Query(ge=0)],
        bytes_max: Annotated[int, Query(alias="bytes", ge=1, le=PART_BYTES)],
    ) -> Response:
        authorize(request, model)
        part = (model, segment, file, offset, bytes_max)
        content = await run_in_threadpool(changes.segment_part, *part)
        return Response(content, media_type=_BYTES)

    return router


async def raise_query_problem(_: Request, problem: Exception) -> Response:
    """Handles parameters that the framework rejects: raises what the service returns for them.

    Raises:
      InvalidArgument: Always.
    """
    assert isinstance(problem, RequestValidationError)  # noqa: S101 - registered for it
    error = problem.errors()[0]
    name = error["loc"][-1]
    value = str(error.get("input"))[:_SHOWN_CHARACTERS]
    message = f"parameter {name!r} is {value!r}: {error['msg']}"
    raise InvalidArgument(message, FieldViolation(name, repr(value), error["msg"])) from problem


def _target_of(target: Target, request: ChangeRequest, path: tuple[str, Kind, Action]) -> Target:
    """Returns the model and version that a message names, as far as the path does not.

    Raises:
      InvalidArgument: The message and the path contradict each other.
    """
    model, kind, action = path
    if target.model not in {"", model} or (request.kind, request.action) != (kind, action):
        value = f"{target.model[:128]!r}, {request.kind} and {request.action}"
        expected = "the model, kind and action of the path"
        raise InvalidArgument.of_field("body", value, expected, "names")
    return Target(model, target.version, target.label)


def _operation_id(kind: Kind, action: Action) -> str:
    """Returns the name that the Python client has for a change, too."""
    if action == "attributes":
        return f"set_{kind.removesuffix('s')}_attributes"
    return f"{action}_{kind}"
