"""The admin API's routes about changes: to make them, to see them, and to recover or compact their
log.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from service.change_plane import ChangePlane
from service.changes.follower import Changes
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
        "/v1/models/{model}/changes/recover",
        summary="Leave out of a change log what is damaged in it",
    )
    async def recover_changes(request: Request, model: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        recovering = partial(_recover, changes, model, context.deadline)
        return await plane.run(recovering, context)

    @router.post(
        "/v1/models/{model}/changes/compact",
        summary="Leave out of a change log what later changes have replaced",
    )
    async def compact_changes(request: Request, model: str) -> dict[str, Any]:
        context = begin(request, "changes", model, authorize)
        compaction = await plane.run(partial(changes.compact, model, context.deadline), context)
        return {"log": str(changes.path_of(model)), **compaction._asdict()}

    router.include_router(change_routes(plane, authorize))
    return router


def _recover(changes: Changes, model: str, deadline: float) -> dict[str, Any]:
    """Recovers the change log of a model, and returns what was lost; errors as of
    `Changes.recover`.
    """
    recovery = changes.recover(model, deadline)
    damaged_log = None
    if recovery.damaged is not None:
        damaged_log = str(recovery.damaged)
    return {
        "log": str(changes.path_of(model)),
        "changes": recovery.records,
        "dropped_bytes": recovery.dropped_bytes,
        "lost_sequences": [list(lost) for lost in recovery.lost],
        "damaged_log": damaged_log,
    }
