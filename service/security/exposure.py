"""Warnings about endpoints that anyone can reach and secrets that anyone can read."""

from __future__ import annotations

import contextlib
import stat

from service.config import ServiceSettings
from service.loopback import on_loopback
from service.observability.logging import fields, logger

_log = logger(__name__)


def warn_of_open_endpoints(settings: ServiceSettings) -> None:
    """Logs what is missing to protect a service that other machines can reach."""
    if on_loopback(settings.host):
        return
    problems = []
    if settings.tls_cert is None:
        problems.append("no TLS: requests and responses can be read and changed in transit")
    # Either of them authenticates clients.
    if settings.tokens is None and settings.tls_client_ca is None:
        problems.append("no tokens and no client certificates: anyone can send requests")
    if problems:
        _log.warning("endpoints_open", extra=fields(host=settings.host, problems=problems))


def warn_of_exposed_secrets(settings: ServiceSettings) -> None:
    """Logs which secrets every user of this machine can read."""
    files = [
        file
        for file in (settings.tls_key, settings.tokens, settings.admin_tokens)
        if file is not None
    ]
    # OSError: a file is being replaced. The warning is not worth a failed start.
    with contextlib.suppress(OSError):
        exposed = [str(file) for file in files if file.stat().st_mode & stat.S_IROTH]
        if exposed:
            _log.warning("secrets_exposed", extra=fields(files=exposed))
