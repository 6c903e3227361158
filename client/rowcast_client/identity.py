"""Whom a client trusts, and what it shows of itself: certificates and a token."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from rowcast_client.errors import InvalidArgument

Place = str | PathLike[str] | None
TOKEN = re.compile(r"[\x21-\x7e]{1,512}", re.ASCII)
HEADER_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
HEADER_VALUE = re.compile(r"[\x20-\x7e]*", re.ASCII)


@dataclass(frozen=True)
class Identity:
    """What the transports need to know.

    Attributes:
      ca_file: authorities trusted over TLS, PEM; None: the system's over HTTP, those that gRPC ships over gRPC.
      cert_file: certificate shown to services that ask for one, PEM.
      key_file: its private key, PEM.
      token: sent with every call as `authorization: Bearer`; not part of what the object prints.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Identity(ca_file={self.ca_file}, cert_file={self.cert_file}, token={'…' if self.token else None})"

    def context(self) -> ssl.SSLContext:
        """Returns what TLS over HTTP is made by.

        Raises:
          InvalidArgument: a file cannot be read, or does not hold what it should; names it.
        """
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except OSError as error:
            raise InvalidArgument(f"ca_file '{self.ca_file}' holds no certificates as PEM: {_reason(error)}") from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: b"")
            except OSError as error:
                raise InvalidArgument(
                    f"cert_file '{self.cert_file}' and key_file '{self.key_file}' are no certificate and its key, "
                    f"as PEM and without a password: {_reason(error)}"
                ) from error
        return context

    def pems(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Returns authorities, key and certificate as PEM, in the order that gRPC takes them.

        Raises:
          InvalidArgument: as `context`; gRPC itself would fail each call without naming a file.
        """
        if self.ca_file is not None or self.cert_file is not None:
            self.context()
        roots, key, cert = (
            None if file is None else file.read_bytes() for file in (self.ca_file, self.key_file, self.cert_file)
        )
        return roots, key, cert


def identity_of(ca_file: Place, cert_file: Place, key_file: Place, token: str | None) -> Identity:
    """Checks what a caller of `Client` gives.

    Raises:
      InvalidArgument: a file is not there, one of cert_file and key_file is missing, or the token cannot be sent.
    """
    files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
    paths = {name: None if file is None else Path(file) for name, file in files.items()}
    for name, path in paths.items():
        if path is not None and not path.is_file():
            raise InvalidArgument(f"{name} {str(path)!r} is no file: expected PEM")
    if (cert_file is None) != (key_file is None):
        raise InvalidArgument("cert_file and key_file go together: one of them is missing")
    if token is not None and not TOKEN.fullmatch(token):
        raise InvalidArgument("token has characters that no header takes: expected 1 to 512 visible ASCII characters")
    return Identity(**paths, token=token)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers that both transports can send.

    Raises:
      InvalidArgument: one cannot be sent; names it, never its value, which may be a secret.
    """
    for name, value in headers.items():
        texts = isinstance(name, str) and isinstance(value, str)
        if not (texts and HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value)):
            raise InvalidArgument(
                f"header {name!r} cannot be sent: expected a name of letters, digits and -_. with a value of printable "
                "ASCII characters"
            )
    return dict(headers)


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
