"""The routes by which clients that a setting names change rows, candidates and contexts."""

from __future__ import annotations

from fastapi import FastAPI, Request

from service.change_routes import change_routes
from service.changes.follower import Changes
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.http.calls import BodyReader
from service.http.docs import ERRORS
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

    def check(request: Request, model: str) -> None:
        context: RequestContext = request.state.context
        context.call = "change"
        context.model = model
        authorize_change(context.principal, model, settings.changes_from)

    async def read_body(request: Request) -> bytes:
        context: RequestContext = request.state.context
        try:
            return await bodies.read(context, request.state.headers, request.receive)
        finally:
            dataplane.budget.release(context)

    app.include_router(change_routes(changes, settings, check, read_body, ERRORS))
