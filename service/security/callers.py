"""Who calls, as its token or its certificate told, and which models it may ask."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from service import logs
from service.errors import PermissionDenied

NAME_CHARS_MAX = 100


@dataclass(frozen=True)
class Caller:
    """Whom a token or a certificate was given to.

    Attributes:
      name: for the log.
      models: that it may ask; None: every one.
    """

    name: str
    models: frozenset[str] | None = None


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Whose call the running task answers; None where neither tokens nor certificates are asked for."""


def enter(caller: Caller | None) -> None:
    """Makes a caller that of the running task, and of its lines in the log; None: it is not known who calls."""
    if caller is not None:
        CALLER.set(caller)
        logs.CALLER_NAME.set(caller.name)


def caller_shown(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Returns the caller that a connection's certificate names, who may ask every model; None: it showed none.

    Args:
      certificate: as `ssl.SSLSocket.getpeercert` tells it; its common name is taken, or else its first other name.
    """
    if not certificate:
        return None
    subject = [pair for names in certificate.get("subject", ()) for pair in names if pair[0] == "commonName"]
    names = [*subject, *certificate.get("subjectAltName", ())]
    return Caller(str(names[0][1])[:NAME_CHARS_MAX] if names else "unnamed")


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
