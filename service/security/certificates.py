"""The service's certificate and key, and who may sign those of callers: read from files that are followed."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service import logs
from service.security.expiry import first_expiry
from service.security.followed_files import FollowedFiles, read_bounded

HTTP, GRPC = "http/1.1", "h2"
PROTOCOLS = (HTTP, GRPC)
"""By their names in ALPN: a caller that offers protocols, but not the one spoken, is refused."""
SERVER, CLIENT_CA = "server", "client_ca"
"""What a certificate is for."""
SOON_DAYS = 14
_DAY_S = 86_400

_log = logs.logger(__name__)


@dataclass(frozen=True)
class Pems:
    """What the files hold, and the same as a context that new connections are made by.

    Attributes:
      chain: the certificate and those between it and its root, PEM.
      key: its private key, PEM, without a password.
      client_ca: who signs the certificates of callers, PEM; None: callers need none.
      contexts: of all of these, by the protocol that is spoken over them, of PROTOCOLS.
      expiries: when the first certificate of a file expires, seconds since 1970, by SERVER and CLIENT_CA.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None
    contexts: Mapping[str, ssl.SSLContext]
    expiries: Mapping[str, float]


class Certificates:
    """A certificate that may be replaced while it is used: connections keep theirs, new ones get the new one."""

    def __init__(self, chain: Path, key: Path, client_ca: Path | None) -> None:
        """Reads the files.

        Raises:
          OSError: one cannot be read.
          ValueError: one is no PEM of its kind, or the key is not the certificate's.
        """
        files = (chain, key) if client_ca is None else (chain, key, client_ca)
        self._files = {SERVER: chain, CLIENT_CA: client_ca}
        self._followed = FollowedFiles(files, lambda: read_pems(chain, key, client_ca), "certificates", self._tell)
        self.of_callers = client_ca is not None
        """Whether callers have to show one."""

    def follow(self) -> None:
        """Reads the files again now."""
        self._followed.follow(even_unchanged=True)

    def now(self) -> Pems:
        """Returns what the files hold."""
        return self._followed.now()

    def tell(self) -> None:
        """Says in the log when what the files hold expires; the louder, the sooner."""
        self._tell(self.now())

    def _tell(self, pems: Pems) -> None:
        for what, expires in pems.expiries.items():
            days_left = (expires - time.time()) / _DAY_S
            event, level = "certificate_read", logging.INFO
            if days_left < SOON_DAYS:
                event, level = "certificate_expires_soon", logging.WARNING
            if days_left <= 0:
                event, level = "certificate_expired", logging.ERROR
            told = {"certificate": what, "file": str(self._files[what]), "days_left": round(days_left, 1)}
            when = datetime.fromtimestamp(expires, UTC).isoformat()
            _log.log(level, event, extra=logs.fields(expires=when, **told))

    def context(self, protocol: str) -> ssl.SSLContext:
        """Returns a context for a listening socket, which hands every new connection to the newest one.

        Args:
          protocol: that is spoken on it, of PROTOCOLS.
        """
        context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        context.certificates, context.spoken = self, protocol
        return context


class _Newest(ssl.SSLContext):
    """asyncio and uvloop ask a context for one thing per connection, and this one passes that on. So nothing of an
    older context, its sessions and authorities among it, is left in a connection of the new one."""

    certificates: Certificates
    spoken: str

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begins a connection by the newest certificate."""
        return self.certificates.now().contexts[self.spoken].wrap_bio(*arguments, **options)


def read_pems(chain: Path, key: Path, client_ca: Path | None) -> Pems:
    """Reads and checks the files.

    Raises:
      OSError: one cannot be read.
      ValueError: one is no PEM of its kind, or the key is not the certificate's.
    """
    pems = [read_bounded(file) for file in (chain, key)]
    authorities = None if client_ca is None else read_bounded(client_ca)
    contexts = {protocol: _context(protocol, chain, key, client_ca) for protocol in PROTOCOLS}
    told = {SERVER: first_expiry(pems[0]), CLIENT_CA: None if authorities is None else first_expiry(authorities)}
    expiries = {what: expiry for what, expiry in told.items() if expiry is not None}
    return Pems(pems[0], pems[1], authorities, contexts, expiries)


def _context(protocol: str, chain: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols([protocol])
    try:
        context.load_cert_chain(chain, key, password=lambda: b"")  # without one, OpenSSL asks the terminal
    except ssl.SSLError as problem:
        told = "are no certificate chain and its key, as PEM and without a password"
        raise ValueError(f"{chain} and {key} {told}: {problem.reason or problem}") from problem
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as problem:
            raise ValueError(f"{client_ca} holds no certificates as PEM: {problem.reason or problem}") from problem
        context.verify_mode = ssl.CERT_REQUIRED
    return context
