"""The certificate of the service and the authorities of client certificates: files that may be replaced at any time."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from service.config import ServiceSettings, SettingsError
from service.observability.logging import fields, logger
from service.security.expiry import first_expiry
from service.security.watched_files import WatchedFiles, read_bounded, reason

SERVER, CLIENT_CA = "server", "client_ca"
WARNING_DAYS = 14
_DAY_S = 86_400

_log = logger(__name__)


@dataclass(frozen=True)
class CertificateSet:
    """The content of the files at one time.

    Attributes:
      chain: the certificate and its intermediates, PEM.
      key: its private key, PEM without a password.
      client_ca: authorities of client certificates, PEM; None: clients need none.
      context: of all three.
      expiries: seconds since 1970 at which the first certificate of a file expires, by SERVER and CLIENT_CA.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    expiries: Mapping[str, float]


class Certificates:
    """Certificates that are reloaded when their files change: new connections get the new ones. Thread safe."""

    def __init__(
        self,
        chain: Path,
        key: Path,
        client_ca: Path | None = None,
        report: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """Reads the files, and logs when they expire.

        Args:
          report: takes SERVER or CLIENT_CA and when it expires, seconds since 1970; called again when files change.
        Raises:
          OSError: a file cannot be read.
          ValueError: a file is no PEM of its kind, or the key does not match the certificate.
        """
        files = (chain, key) if client_ca is None else (chain, key, client_ca)
        self._paths, self._report = {SERVER: chain, CLIENT_CA: client_ca}, report
        self._set = WatchedFiles(
            files, lambda: read_certificates(chain, key, client_ca), "certificates", self._report_expiries
        )
        self._report_expiries(self._set.value())

    @classmethod
    def of(
        cls, settings: ServiceSettings, report: Callable[[str, float], None] = lambda *_: None
    ) -> Certificates | None:
        """Returns the certificates that the settings name; None: they name none.

        Raises:
          SettingsError: a file cannot be used.
        """
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        try:
            return cls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, report)
        except (OSError, ValueError) as problem:
            raise SettingsError(f"--tls-cert, --tls-key or --tls-client-ca: {reason(problem)}") from problem

    def reload(self) -> None:
        """Reads the files again now."""
        self._set.reload()

    def ssl_context(self) -> ssl.SSLContext:
        """Returns a context for a listening socket, which hands every new connection to the newest context."""
        context = self._set.value().context

        def use_newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._set.value().context

        context.sni_callback = use_newest  # also called for clients that send no server name
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Returns credentials of a gRPC server, which ask for the newest files at every new connection."""
        served = self._set.value()

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            current = self._set.value()
            if current is served:
                return None
            served = current
            return _grpc_configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(served), newest, require_client_authentication=served.client_ca is not None
        )

    def _report_expiries(self, certificates: CertificateSet) -> None:
        for name, expires in certificates.expiries.items():
            self._report(name, expires)
            days_left = (expires - time.time()) / _DAY_S
            event, level = "certificate_loaded", logging.INFO
            if days_left < WARNING_DAYS:
                event, level = "certificate_expires_soon", logging.WARNING
            if days_left <= 0:
                event, level = "certificate_expired", logging.ERROR
            what = {"certificate": name, "file": str(self._paths[name]), "days_left": round(days_left, 1)}
            _log.log(level, event, extra=fields(expires=datetime.fromtimestamp(expires, UTC).isoformat(), **what))


def read_certificates(chain: Path, key: Path, client_ca: Path | None) -> CertificateSet:
    """Reads and checks the files.

    Raises:
      OSError: a file cannot be read.
      ValueError: a file is no PEM of its kind, or the key does not match the certificate.
    """
    pems = read_bounded(chain), read_bounded(key)
    authorities = None if client_ca is None else read_bounded(client_ca)
    found = {SERVER: first_expiry(pems[0]), CLIENT_CA: None if authorities is None else first_expiry(authorities)}
    expiries = {name: expires for name, expires in found.items() if expires is not None}
    return CertificateSet(*pems, authorities, _context(chain, key, client_ca), expiries)


def _context(chain: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(chain, key, password=lambda: b"")  # without one, OpenSSL asks the terminal
    except ssl.SSLError as problem:
        expected = "are not a certificate chain and its key, as PEM without a password"
        raise ValueError(f"{chain} and {key} {expected}: {problem.reason or problem}") from problem
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as problem:
            raise ValueError(f"{client_ca} holds no certificates as PEM: {problem.reason or problem}") from problem
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET  # a resumed session would skip the check against new authorities
        context.num_tickets = 0
    return context


def _grpc_configuration(certificates: CertificateSet) -> grpc.ServerCertificateConfiguration:
    pair = certificates.key, certificates.chain
    return grpc.ssl_server_certificate_configuration([pair], certificates.client_ca)
