"""Who calls, as its token told, and which models it may ask."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from service import logs
from service.errors import PermissionDenied


@dataclass(frozen=True)
class Caller:
    """Whom a token was given to.

    Attributes:
      name: for the log.
      models: that it may ask; None: every one.
    """

    name: str
    models: frozenset[str] | None = None


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Whose call the running task answers; None where tokens are not asked for."""


def enter(caller: Caller) -> None:
    """Makes a caller that of the running task, and of its lines in the log."""
    CALLER.set(caller)
    logs.CALLER_NAME.set(caller.name)


def require_permission(model: str) -> None:
    """Holds the caller to its models.

    Args:
      model: asked for; empty: the only one there is, which a caller of some models has to name.

    Raises:
      PermissionDenied: it may not ask that model.
    """
    caller = CALLER.get()
    if caller is not None and caller.models is not None and model not in caller.models:
        raise PermissionDenied(f"model is {model[:80]!r}; this token is for {_told(caller.models)}")


def require_all_models() -> None:
    """Holds a caller of some models off what tells of all of them.

    Raises:
      PermissionDenied: it may not ask every model.
    """
    caller = CALLER.get()
    if caller is not None and caller.models is not None:
        raise PermissionDenied(f"this tells of every model; this token is for {_told(caller.models)}")


def _told(models: frozenset[str]) -> str:
    return ", ".join(sorted(models)) or "no model"
