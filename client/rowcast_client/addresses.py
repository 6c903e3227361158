"""The addresses of a service: one, or those of several processes that serve the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rowcast_client.errors import InvalidArgument

SCHEMES = ("http", "https", "grpc", "grpcs")
EXPECTED = "expected http://host:port, https://host:port, grpc://host:port or grpcs://host:port"


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Attributes:
      url: The address as given, for messages.
      transport: "http" or "grpc".
      secure: Whether it is reached over TLS.
      target: The target of the transport: a base URL of HTTP, host:port of gRPC.
      path: The path below which a proxy serves the service; "" if there is none.
    """

    url: str
    transport: str
    secure: bool
    target: str
    path: str


def parse_addresses(urls: str | Sequence[str]) -> tuple[Address, ...]:
    """Reads the addresses of a service: a list, or a text with commas between them. All but the
    first of a text may leave out the scheme (`grpc://a:9090,b:9090`). Repeated addresses count
    once.

    Raises:
      InvalidArgument: There is no address, or one cannot be used, or their schemes or paths differ.
    """
    texts: Sequence[str | Sequence[str]] = [urls]
    if isinstance(urls, (list, tuple)):
        texts = urls
    addresses: list[Address] = []
    for text in texts:
        addresses += map(_parse, _separate(text))
    if not addresses:
        raise InvalidArgument(f"the list of addresses is empty: {EXPECTED}")

    # Clients have one transport, one TLS context and one set of paths for all addresses.
    first = addresses[0]
    for address in addresses:
        if (_scheme(address.url), address.path) != (_scheme(first.url), first.path):
            raise InvalidArgument(
                f"addresses {first.url!r} and {address.url!r} differ in more than host and port: "
                "expected one scheme and one path for all"
            )
    return tuple(dict.fromkeys(addresses))


def _separate(text: Any) -> list[str]:
    """Returns the addresses of a text, each with its scheme."""
    if not isinstance(text, str):
        raise InvalidArgument(f"address {text!r} cannot be used: {EXPECTED}")
    if "@" in text:  # a password may contain commas, and must not be in the message
        raise InvalidArgument(f"an address has a user or a password: {EXPECTED}")
    urls: list[str] = []
    for part in text.split(","):
        url = part.strip()
        if urls and not _scheme(url):
            url = f"{_scheme(urls[0])}://{url}"
        urls.append(url)
    return urls


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator:
        return ""
    return scheme.lower()


def _parse(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"address {url!r} cannot be read ({error}): {EXPECTED}") from error
    if parts.scheme not in SCHEMES or not parts.hostname or not url.isascii():
        raise InvalidArgument(f"address {url!r} cannot be used: {EXPECTED}")
    # The message has the host alone: a query may hold a secret.
    if parts.query or parts.fragment:
        raise InvalidArgument(
            f"address of {parts.hostname} has more than a host, a port and a path: {EXPECTED}"
        )
    secure = parts.scheme.endswith("s")
    path = parts.path.rstrip("/")
    if parts.scheme.startswith("http"):
        return Address(url, "http", secure, url.rstrip("/"), path)
    if path:
        raise InvalidArgument(
            f"address {url!r} has a path, which gRPC does not support: {EXPECTED}"
        )
    # urlsplit removes the brackets of an IPv6 address, which gRPC needs.
    host = parts.hostname
    if ":" in host:
        host = f"[{host}]"
    if not port:
        port = 443 if secure else 80
    return Address(url, "grpc", secure, f"{host}:{port}", path)
