"""The service's certificate and key, and who may sign those of callers: read from files that are followed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.security.followed_files import FollowedFiles, read_bounded

HTTP, GRPC = "http/1.1", "h2"
PROTOCOLS = (HTTP, GRPC)
"""By their names in ALPN: a caller that offers protocols, but not the one spoken, is refused."""


@dataclass(frozen=True)
class Pems:
    """What the files hold, and the same as a context that new connections are made by.

    Attributes:
      chain: the certificate and those between it and its root, PEM.
      key: its private key, PEM, without a password.
      client_ca: who signs the certificates of callers, PEM; None: callers need none.
      contexts: of all of these, by the protocol that is spoken over them, of PROTOCOLS.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None
    contexts: Mapping[str, ssl.SSLContext]


class Certificates:
    """A certificate that may be replaced while it is used: connections keep theirs, new ones get the new one."""

    def __init__(self, chain: Path, key: Path, client_ca: Path | None) -> None:
        """Reads the files.

        Raises:
          OSError: one cannot be read.
          ValueError: one is no PEM of its kind, or the key is not the certificate's.
        """
        files = (chain, key) if client_ca is None else (chain, key, client_ca)
        self._followed = FollowedFiles(files, lambda: read_pems(chain, key, client_ca), "certificates")
        self.of_callers = client_ca is not None
        """Whether callers have to show one."""

    def follow(self) -> None:
        """Reads the files again now."""
        self._followed.follow(even_unchanged=True)

    def now(self) -> Pems:
        """Returns what the files hold."""
        return self._followed.now()

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
    return Pems(pems[0], pems[1], authorities, contexts)


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
