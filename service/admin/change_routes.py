"""The admin API's routes about changes: to make them, to see them, and to back them up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from service.change_plane import ChangePlane
from service.http.change_routes import begin, change_routes
from service.security.principal import authorize


def admin_change_routes(plane: ChangePlane) -> APIRouter:
    """Returns the routes; `plane` makes the changes."""
    router = APIRouter()
    changes = plane.changes

    @router.get("/v1/models/{model}/changes", summary="Get what was changed since the export")
    async def get_changes(request: Request, model: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        return await plane.run(partial(changes.status, model, context.deadline), context)

    @router.post(
        "/v1/models/{model}/changes/backup",
        summary="Write a copy of the changes file of a model",
    )
    async def back_up_changes(request: Request, model: str, path: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        backing_up = partial(changes.back_up, model, Path(path), context.deadline)
        size = await plane.run(backing_up, context)
        return {"file": str(changes.path_of(model)), "path": path, "bytes": size}

    router.include_router(change_routes(plane, authorize))
    return router
