"""Where operators come in: an address of its own, this machine's own unless there are tokens for it."""

from __future__ import annotations

import socket

from service.security.followed_files import why
from service.security.guards import on_loopback
from service.security.tokens import Tokens
from service.settings import ServiceSettings, SettingsError
from service.sockets import listen

PORT = 8090
"""Unless a setting says otherwise, or it is taken."""


def admin_tokens(settings: ServiceSettings) -> Tokens | None:
    """Returns the tokens of operators; None: none are asked for.

    Raises:
      SettingsError: their file cannot be read, or there is none though other machines reach the address.
    """
    if not settings.admin:
        return None
    if settings.admin_tokens is None:
        if not on_loopback(settings.admin_host):
            raise SettingsError(
                f"--admin-host (or ROWCAST_ADMIN_HOST) is {settings.admin_host!r}, which other machines reach: "
                "--admin-tokens must be given"
            )
        return None
    try:
        return Tokens(settings.admin_tokens)
    except (OSError, ValueError) as problem:
        raise SettingsError(f"--admin-tokens (or ROWCAST_ADMIN_TOKENS): {why(problem)}") from problem


def port_of(listener: socket.socket | None) -> int | None:
    """Returns the port that a listener has bound."""
    return None if listener is None else int(listener.getsockname()[1])


def admin_listener(settings: ServiceSettings) -> socket.socket | None:
    """Listens for operators; None: nobody is listened to.

    A port that nobody asked for, and that another service has, is no reason not to serve: any free one is taken then.

    Raises:
      OSError: the address cannot be bound.
    """
    if not settings.admin:
        return None
    if settings.admin_port is not None:
        return listen("admin", settings.admin_host, settings.admin_port)
    try:
        return listen("admin", settings.admin_host, PORT)
    except OSError:
        return listen("admin", settings.admin_host, 0)
