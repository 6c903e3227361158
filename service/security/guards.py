"""What the settings close the doors with."""

from __future__ import annotations

import contextlib
import stat
from dataclasses import dataclass
from ipaddress import ip_address

from service import logs
from service.security.certificates import Certificates
from service.security.followed_files import why
from service.security.tokens import Tokens
from service.settings import ServiceSettings, SettingsError

_LOG = logs.logger(__name__)


@dataclass(frozen=True)
class Guards:
    """What both doors ask of whoever comes.

    Attributes:
      tokens: of callers; None: none are asked for.
      certificates: of the service; None: plain text.
    """

    tokens: Tokens | None = None
    certificates: Certificates | None = None

    def follow(self) -> None:
        """Reads every file again now."""
        if self.tokens is not None:
            self.tokens.follow()
        if self.certificates is not None:
            self.certificates.follow()

    def tell(self) -> None:
        """Says in the log when the certificates expire."""
        if self.certificates is not None:
            self.certificates.tell()

    def expiries(self) -> dict[tuple[str, ...], float]:
        """Returns when certificates expire, seconds since 1970, by what they are for."""
        if self.certificates is None:
            return {}
        return {(what,): expires for what, expires in self.certificates.now().expiries.items()}


OPEN = Guards()
"""Asks nothing."""


def guards_of(settings: ServiceSettings) -> Guards:
    """Reads the files that the settings name.

    Raises:
      SettingsError: one cannot be read, or does not hold what it should.
    """
    tokens, certificates = None, None
    try:
        if settings.tokens is not None:
            tokens = Tokens(settings.tokens)
    except (OSError, ValueError) as problem:
        raise SettingsError(f"--tokens (or ROWCAST_TOKENS): {why(problem)}") from problem
    try:
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    except (OSError, ValueError) as problem:
        raise SettingsError(f"--tls-cert, --tls-key or --tls-client-ca: {why(problem)}") from problem
    return Guards(tokens, certificates)


def tell_open_doors(settings: ServiceSettings) -> None:
    """Says in the log what a service leaves open that others than this machine reach."""
    if on_loopback(settings.host):
        return
    left_open = []
    if settings.tls_cert is None:
        left_open.append("no TLS: whoever is on the way reads and changes what is sent")
    if settings.tokens is None and settings.tls_client_ca is None:
        left_open.append("no tokens and no certificates of callers: everyone may call")
    if left_open:
        _LOG.warning("doors_open", extra=logs.fields(host=settings.host, problems=left_open))


def tell_exposed_secrets(settings: ServiceSettings) -> None:
    """Says in the log which secrets every user of this machine may read."""
    files = [file for file in (settings.tls_key, settings.tokens, settings.admin_tokens) if file is not None]
    with contextlib.suppress(OSError):  # one that is replaced at this moment
        exposed = [str(file) for file in files if file.stat().st_mode & stat.S_IROTH]
        if exposed:
            _LOG.warning("secrets_exposed", extra=logs.fields(files=exposed))


def on_loopback(host: str) -> bool:
    """Tells whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
