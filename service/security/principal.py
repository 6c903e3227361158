"""The authenticated client of a request, and what it may use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from service.errors import FieldViolation, PermissionDenied

NAME_CHARS_MAX = 100
"""Length at which the name in a client's certificate is cut off."""


@dataclass(frozen=True)
class Principal:
    """The client that a token or a certificate was issued to.

    Attributes:
      name: The name of the client, for the log.
      models: The models that the client may use; None: every model.
    """

    name: str
    models: frozenset[str] | None = None


def authorize(principal: Principal | None, model: str) -> None:
    """Checks that a client may use a model.

    Args:
      principal: The client; None: authentication is off, everything is allowed.
      model: The model that the request names; empty: the only model of the service, which a client
        of some models has to name.

    Raises:
      PermissionDenied: The client may not use the model.
    """
    if principal is not None and principal.models is not None and model not in principal.models:
        # The client chose the name, which may be of any length.
        value = repr(model[:80])
        models = _list_models(principal.models)
        message = f"model is {value}; this token is for {models}"
        raise PermissionDenied(message, FieldViolation("model", value, models))


def authorize_change(
    principal: Principal | None, model: str, changes_from: Collection[str]
) -> None:
    """Checks that a client may change a model.

    Args:
      principal: The client; None: authentication is off, and nobody may change anything here.
      model: The model that the request names.
      changes_from: The names of the clients that may change models: the setting.

    Raises:
      PermissionDenied: The client may not change the model.
    """
    if principal is None or principal.name not in changes_from:
        name = "a client without a token"
        if principal is not None:
            name = repr(principal.name)
        raise PermissionDenied(
            f"{name} may not change models here; name its token or certificate in the setting "
            "changes_from, or send the change to the admin API"
        )
    authorize(principal, model)


def authorize_all(principal: Principal | None) -> None:
    """Checks that a client may see what concerns every model.

    Raises:
      PermissionDenied: The client may use some models only.
    """
    if principal is not None and principal.models is not None:
        raise PermissionDenied(
            f"the request concerns every model; this token is for {_list_models(principal.models)}"
        )


def _list_models(models: frozenset[str]) -> str:
    return ", ".join(sorted(models)) or "no model"
