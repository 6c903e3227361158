"""The admin API's routes about changes: to make them, to see them, and to recover their log."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from bundle.changes.log import recover
from bundle.errors import LogLocked
from service.change_routes import change_routes
from service.changes.follower import Changes
from service.config import ServiceSettings
from service.errors import DeadlineExceeded, FieldViolation, NotFound, NotReady
from service.security.principal import authorize

_RECOVER_S = 5.0
"""Time for which a recovery waits for the lock of the log: the admin API responds within 10 s."""


def admin_change_routes(changes: Changes, settings: ServiceSettings) -> APIRouter:
    """Returns the routes.

    Args:
      changes: Makes the changes.
      settings: The limits of bodies.
    """
    router = APIRouter()

    @router.get("/v1/models/{model}/changes", summary="Get what was changed since the export")
    def get_changes(request: Request, model: str) -> dict[str, Any]:
        _authorize(request, model)
        return changes.status(model)

    @router.post(
        "/v1/models/{model}/changes/recover",
        summary="Leave out of a change log what is damaged in it",
    )
    def recover_changes(request: Request, model: str) -> dict[str, Any]:
        _authorize(request, model)
        return _recover(changes, model)

    router.include_router(change_routes(changes, settings, _authorize, Request.body))
    return router


def _authorize(request: Request, model: str) -> None:
    authorize(request.state.principal, model)


def _recover(changes: Changes, model: str) -> dict[str, Any]:
    """Recovers the change log of a model, and returns what was lost.

    Raises:
      NotFound: The model has no change log.
      NotReady: The log cannot be read or written.
    """
    path = changes.path_of(model)
    try:
        recovery = recover(path, model, time.monotonic() + _RECOVER_S)
    except LogLocked as problem:
        raise DeadlineExceeded(f"{problem}; nothing was recovered") from problem
    except FileNotFoundError:
        name = repr(model[:128])
        violation = FieldViolation("model", name, "a model with a change log")
        message = f"model {name} has no change log: {path} does not exist"
        raise NotFound(message, violation) from None
    except OSError as problem:
        raise NotReady(f"change log {path} cannot be recovered: {problem.strerror}") from problem

    damaged_log = None
    if recovery.damaged is not None:
        damaged_log = str(recovery.damaged)
    return {
        "log": str(path),
        "changes": recovery.records,
        "dropped_bytes": recovery.dropped_bytes,
        "lost_sequences": [list(lost) for lost in recovery.lost],
        "damaged_log": damaged_log,
    }
