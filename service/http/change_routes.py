"""The routes that change candidates and contexts: of the HTTP endpoint, for clients that a
setting names, and of the admin API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from bundle.changes.file import SEQUENCE_END
from bundle.format.changes_position import MARK_PATTERN, ChangesPosition
from service.change_plane import Authorize, ChangePlane
from service.changes.copying import STATES
from service.codec import json
from service.codec.changes import (
    applied_message,
    change_message,
    change_value,
    read_change,
    read_change_message,
)
from service.codec.metadata import Headers, is_protobuf
from service.contract.changes import CHANGES, ChangeClass, ChangeRequest, ChangeResult
from service.contract.messages import Target
from service.engine.context import RequestContext
from service.errors import Cancelled, FieldViolation, InvalidArgument
from service.http.calls import BodyReader
from service.http.error_schemas import ERRORS
from service.http.middleware import response_of
from service.openapi import Int64, json_content

Result = TypeVar("Result")
_JSON = "application/json"
_STATES_RESPONSE = {
    "description": "States, the sequence of the last one of the file, and of one forgotten.",
    "content": {
        _JSON: {
            "schema": {
                "type": "object",
                "properties": {
                    "sequence": {"type": "integer", "format": "int64"},
                    "forgotten": {"type": "integer", "format": "int64"},
                    "states": {"type": "array", "items": {"type": "array", "items": {}}},
                },
            }
        }
    },
}
_SHOWN_CHARACTERS = 80
"""Number of characters of a rejected value that its message repeats."""


def add_change_routes(app: FastAPI, plane: ChangePlane) -> None:
    """Adds the routes to the application of pages; `plane` makes the changes."""

    async def get_changes(request: Request, model: str) -> Any:
        """Returns up to which offset each stream was applied, to the clients that may change the
        model.
        """
        context = begin(request, "changes", model, plane.authorize_client)
        applied = await plane.applied(context)
        headers = request.state.headers
        return response_of(headers, lambda: applied_message(applied), lambda: asdict(applied))

    app.get(
        "/v1/models/{model}/changes",
        name="changes",
        operation_id="get_changes",
        summary="Get up to which offset each stream was applied",
        tags=["changes"],
        response_model=None,
        responses=ERRORS | {200: json_content("ChangesResponse")},
    )(get_changes)
    app.include_router(change_routes(plane, plane.authorize_client, ERRORS))


def begin(request: Request, call: str, model: str, authorize: Authorize) -> RequestContext:
    """Returns the context of a request about the changes of a model.

    Raises:
      PermissionDenied: The client may not change the model.
    """
    context: RequestContext = request.state.context
    # The metrics and the log of the request name the call and the model, also if it fails.
    context.call = call
    context.model = model
    authorize(context.principal, model)
    return context


def change_routes(
    plane: ChangePlane,
    authorize: Authorize,
    responses: dict[int | str, dict[str, Any]] | None = None,
) -> APIRouter:
    """Returns a route for each action on candidates and contexts.

    The state of a request holds its `context`, and the `headers` that the service reads.

    Args:
      plane: Makes the changes.
      authorize: Checks the permission of clients.
      responses: What the document says of failures; None: what it says of every route.
    """
    router = APIRouter(prefix="/v1/models/{model}", tags=["changes"])
    settings = plane.dataplane.settings
    bodies = BodyReader(plane.dataplane)

    def add(change_class: ChangeClass) -> None:
        def read(body: bytes, headers: Headers, model: str) -> tuple[Target, ChangeRequest]:
            if not is_protobuf(headers):
                value = json.parse(body, settings)
                return Target(model), read_change(change_class, value, settings)
            target, change_request = read_change_message(body, settings)
            return _target_of(target, change_request, model, change_class), change_request

        async def change(request: Request, model: str) -> Any:
            # Before the body is read, which may have megabytes.
            context = begin(request, "change", model, authorize)
            plane.check_room(model)
            headers: Headers = request.state.headers

            async def respond(receive: Receive) -> ChangeResult:
                try:
                    body = await bodies.read(context, headers, receive)
                    reading = partial(read, body, headers, model)
                    changing = plane.change(reading, len(body), authorize, context)
                    return await _while_connected(receive, changing)
                finally:
                    plane.dataplane.budget.release(context)

            result = await plane.on_serving_loop(request.receive, respond)
            return response_of(
                headers, lambda: change_message(result), lambda: change_value(result)
            )

        # The framework would parse a body that it knows, before the request is authorized.
        body = json_content(change_class.body.schema) | {"required": True}
        router.post(
            f"/{change_class.kind}/{change_class.action}",
            operation_id=change_class.body.call,
            summary=change_class.__doc__,
            response_class=JSONResponse,
            responses=(responses or {}) | {200: json_content("ChangeResponse")},
            openapi_extra={"requestBody": body},
        )(change)

    for change_class in CHANGES.values():
        add(change_class)

    @router.get(
        STATES,
        operation_id="get_changed_states",
        summary="Get states of a changes file, for a copy of it",
        response_class=Response,
        responses=(responses or {}) | {200: _STATES_RESPONSE},
    )
    async def get_states(
        request: Request,
        model: str,
        mark: Annotated[str, Query(pattern=f"{MARK_PATTERN}|^$")],
        sequence: Annotated[Int64, Query(ge=0, lt=SEQUENCE_END)],
    ) -> Response:
        context = begin(request, "changes", model, authorize)
        position = ChangesPosition(mark=mark, sequence=sequence) if mark else None
        after = partial(plane.changes.after, model, position, context.deadline)
        states, last, forgotten = await plane.run(after, context)
        rows = [tuple(state) for state in states]
        content = orjson.dumps({"sequence": last, "forgotten": forgotten, "states": rows})
        return Response(content, media_type=_JSON)

    return router


async def _while_connected(receive: Receive, call: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of a call, which is cancelled if the client leaves.

    Raises:
      Cancelled: The client has left.
      Exception: Whatever the call raises.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    calling = asyncio.ensure_future(call)
    leaving = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({calling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise Cancelled("the client has disconnected")
        return calling.result()
    finally:
        calling.cancel()
        leaving.cancel()


async def raise_query_problem(_: Request, problem: Exception) -> Response:
    """Handles parameters that the framework rejects: raises what the service returns for them.

    Raises:
      InvalidArgument: Always.
    """
    assert isinstance(problem, RequestValidationError)  # noqa: S101 - registered for it
    error = problem.errors()[0]
    # Behind it stand names of types that pydantic tried.
    name = error["loc"][1]
    value = str(error.get("input"))[:_SHOWN_CHARACTERS]
    message = f"parameter {name!r} is {value!r}: {error['msg']}"
    raise InvalidArgument(message, FieldViolation(name, repr(value), error["msg"])) from problem


def _target_of(target: Target, request: ChangeRequest, model: str, change: ChangeClass) -> Target:
    """Returns the model and version that a message names, as far as the path does not.

    Raises:
      InvalidArgument: The message and the path contradict each other.
    """
    if type(request) is not change or target.model not in {"", model}:
        value = f"{target.model[:128]!r}, {request.kind} and {request.action}"
        expected = "the model, kind and action of the path"
        raise InvalidArgument.of_field("body", value, expected, "names")
    return Target(model, target.version, target.label)
