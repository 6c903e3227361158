"""The certificate of the service and the authorities of client certificates: files that may be
replaced at any time.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509

from service.config import ServiceSettings, SettingsError
from service.observability.logging import fields, logger
from service.security.client_certificate import ClientConnection
from service.security.watched_files import WatchedFiles

SERVER = "server"
CLIENT_CA = "client_ca"
WARNING_DAYS = 14
"""A certificate that is valid for fewer days is a warning."""
_DAY_S = 86_400

_log = logger(__name__)

Report = Callable[[str, float], None]
"""A function that takes SERVER or CLIENT_CA, and the time at which the first certificate of that
file expires, in seconds since 1970.
"""


@dataclass(frozen=True)
class CertificateSet:
    """The certificates in the files at one time, for either transport."""

    context: ssl.SSLContext
    grpc: grpc.ServerCertificateConfiguration


class Certificates:
    """Certificates that are reloaded when their files change: new connections get the new ones.
    Thread safe.
    """

    def __init__(
        self,
        chain: Path,
        key: Path,
        client_ca: Path | None = None,
        report: Report = lambda *_: None,
    ) -> None:
        """Reads the files, and logs when they expire.

        Args:
          chain: The PEM file of the certificate and its intermediates.
          key: The PEM file of its private key, without a password.
          client_ca: The PEM file of authorities of client certificates; None: clients need none.
          report: Called now and when files change.

        Raises:
          OSError: A file cannot be read.
          ValueError: A file is no PEM of its kind, or the key does not match the certificate.
        """
        files = [file for file in (chain, key, client_ca) if file is not None]
        self._client_ca = client_ca
        self._set = WatchedFiles(
            files, lambda: _read_certificates(chain, key, client_ca, report), "certificates"
        )

    @classmethod
    def of(cls, settings: ServiceSettings, report: Report = lambda *_: None) -> Certificates | None:
        """Returns the certificates that the settings name; None: they name none.

        Raises:
          SettingsError: A file cannot be used.
        """
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        try:
            return cls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, report)
        except (OSError, ValueError) as problem:
            raise SettingsError(f"--tls-cert, --tls-key or --tls-client-ca: {problem}") from problem

    def ssl_context(self) -> ssl.SSLContext:
        """Returns a context for a listening socket: of every new connection, the newest context."""
        return _Newest(self._set)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns credentials of a gRPC server, which read newer files at the next connection."""
        served = self._set.value().grpc
        lock = threading.Lock()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """Returns None unless the files have changed: gRPC's core crashes if it replaces a
            configuration while other handshakes use it (grpc/grpc#36693), so it must not replace
            one at every connection.
            """
            nonlocal served
            newest = self._set.value().grpc
            with lock:
                if newest is served:
                    return None
                served = newest
                return newest

        return grpc.dynamic_ssl_server_credentials(
            served, newer, require_client_authentication=self._client_ca is not None
        )


class _Newest(ssl.SSLContext):
    """Leaves each connection to the newest context, with its certificates and its sessions.

    A server that resumes a session does not check the client's certificate, and looks for the
    session in the context with which the connection began. If that were always the same one, a
    client of an authority that is gone could resume its session until that expires.
    """

    _newest: WatchedFiles[CertificateSet]

    def __new__(cls, newest: WatchedFiles[CertificateSet]) -> _Newest:
        """Takes the certificates, of which it is a context."""
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context._newest = newest
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """See `ssl.SSLContext.wrap_bio`, which event loops call for each connection."""
        context = self._newest.value().context
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _read_certificates(
    chain: Path, key: Path, client_ca: Path | None, report: Report
) -> CertificateSet:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    pair = key.read_bytes(), chain.read_bytes()
    authorities = None
    if client_ca is not None:
        authorities = client_ca.read_bytes()
    try:
        # Without a password, OpenSSL prompts on the terminal.
        context.load_cert_chain(chain, key, password=lambda: b"")
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.sslobject_class = ClientConnection
            # A client's certificate may expire before its ticket does.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        _report_expiry(SERVER, chain, report)
        if client_ca is not None:
            _report_expiry(CLIENT_CA, client_ca, report)
    except (ssl.SSLError, ValueError) as problem:
        expected = (
            "a certificate chain, its key without a password and, if set, authorities of "
            "clients, all as PEM"
        )
        files = [str(file) for file in (chain, key, client_ca) if file is not None]
        raise ValueError(f"{files} are not {expected}: {problem}") from problem
    return CertificateSet(context, grpc.ssl_server_certificate_configuration([pair], authorities))


def _report_expiry(name: str, file: Path, report: Report) -> None:
    certificates = x509.load_pem_x509_certificates(file.read_bytes())
    expiry = min(certificate.not_valid_after_utc for certificate in certificates)
    report(name, expiry.timestamp())
    days_left = (expiry.timestamp() - time.time()) / _DAY_S
    event = "certificate_loaded"
    level = logging.INFO
    if days_left < WARNING_DAYS:
        event = "certificate_expires_soon"
        level = logging.WARNING
    if days_left <= 0:
        event = "certificate_expired"
        level = logging.ERROR
    about = {"certificate": name, "file": str(file), "days_left": round(days_left, 1)}
    _log.log(level, event, extra=fields(expires=expiry.isoformat(), **about))
