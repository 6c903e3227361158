"""The routes by which clients that a setting names change rows, candidates and contexts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from service.change_routes import change_routes
from service.change_schemas import ChangesResponse
from service.changes.follower import Changes
from service.codec.change_messages import applied_message
from service.codec.metadata import PROTOBUF, accepts_protobuf
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.http.calls import BodyReader
from service.http.error_schemas import ERRORS
from service.security.principal import authorize_change


def add_change_routes(app: FastAPI, dataplane: Dataplane, changes: Changes) -> None:
    """Adds the routes.

    Args:
      app: The application of pages.
      dataplane: Has the limits of bodies.
      changes: Makes the changes.
    """
    settings = dataplane.settings
    bodies = BodyReader(dataplane)

    def check(request: Request, model: str, call: str = "change") -> None:
        # The metrics and the log of the request name the call and the model, also if it fails.
        context: RequestContext = request.state.context
        context.call = call
        context.model = model
        authorize_change(context.principal, model, settings.changes_from)

    async def read_body(request: Request) -> bytes:
        context: RequestContext = request.state.context
        try:
            return await bodies.read(context, request.state.headers, request.receive)
        finally:
            dataplane.budget.release(context)

    async def get_changes(request: Request, model: str) -> Any:
        """Returns up to which offset each stream was applied, to the clients that may change the
        model.
        """
        check(request, model, "changes")
        # The call may wait for a change that is being written.
        applied = await run_in_threadpool(changes.applied, model)
        if accepts_protobuf(request.headers):
            content = applied_message(applied).SerializeToString()
            return Response(content, media_type=PROTOBUF)
        return asdict(applied)

    app.get(
        "/v1/models/{model}/changes",
        name="changes",
        operation_id="get_changes",
        summary="Get up to which offset each stream was applied",
        tags=["changes"],
        response_model=None,
        responses=ERRORS | {200: {"model": ChangesResponse}},
    )(get_changes)
    app.include_router(change_routes(changes, settings, check, read_body, ERRORS))
