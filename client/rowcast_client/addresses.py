"""Where a service is: `http://`, `https://`, `grpc://` and `grpcs://` addresses."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rowcast_client.errors import InvalidArgument

SCHEMES = {"http": ("http", False), "https": ("http", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}
EXPECTED = "expected http://host:port, https://host:port, grpc://host:port or grpcs://host:port"


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Attributes:
      url: as given, for messages.
      transport: "http" or "grpc".
      secure: over TLS.
      target: what the transport connects to: a base URL of HTTP, host:port of gRPC.
    """

    url: str
    transport: str
    secure: bool
    target: str


def parse_address(url: str) -> Address:
    """Reads an address.

    Raises:
      InvalidArgument: it is none.
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"address {url!r} cannot be used: {EXPECTED}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"address {url!r} cannot be read ({error}): {EXPECTED}") from error
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise InvalidArgument(f"address {url!r} cannot be used: {EXPECTED}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument(f"address of {parts.hostname} carries more than a host, port and path: {EXPECTED}")
    transport, secure = SCHEMES[parts.scheme]
    if transport == "http":
        return Address(url, transport, secure, url.rstrip("/"))
    if parts.path.strip("/"):
        raise InvalidArgument(f"address {url!r} has a path, which gRPC does not know: {EXPECTED}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(url, transport, secure, f"{host}:{port or (443 if secure else 80)}")
