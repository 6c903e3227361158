"""The hosts that requests may be sent to, whichever listener receives them.

A web page can let its own name point to 127.0.0.1 (DNS rebinding), and then read the responses of a
service that only this machine reaches. Its requests have a foreign `Host`. No page reaches a gRPC
endpoint: browsers speak HTTP/2 over TLS alone, and then compare the name with the certificate.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from service.errors import PermissionDenied
from service.loopback import host_name, is_address, on_loopback

_HOSTS_MAX = 256
"""Number of values of `Host` whose check is remembered."""
_HOST_CHARS_MAX = 256
"""Length of a value that is remembered, at most: a name has at most 253 characters, and clients
choose what they send.
"""


class AllowedHosts:
    """Checks the `Host` of the requests to one listener.

    Names in `allowed_hosts` are accepted, and loopback addresses where the listener has one.
    Without `allowed_hosts` every host is accepted by a listener that other machines reach, or whose
    clients authenticate: a web page has no credentials.
    """

    def __init__(
        self,
        address: str,
        names: Collection[str],
        *,
        authenticates: bool = False,
        accepts_addresses: bool = False,
    ) -> None:
        """Creates the check of a listener.

        Args:
          address: The address that it listens on.
          names: The setting `allowed_hosts`.
          authenticates: Whether its clients authenticate.
          accepts_addresses: Whether other machines may name it by any address, as probes and
            Prometheus do. A web page can point a name elsewhere, but no address.
        """
        self._names = frozenset(map(str.lower, names))
        self._loopback = on_loopback(address)
        self._addresses = accepts_addresses and not self._loopback
        self._checked = bool(self._names) or (self._loopback and not authenticates)
        # Requests of one client all name the same host.
        self._is_allowed_cached = lru_cache(_HOSTS_MAX)(self._is_allowed)

    def check(self, host: str) -> None:
        """Checks the value of `Host`.

        Raises:
          PermissionDenied: The host is not allowed.
        """
        is_allowed = self._is_allowed
        if len(host) <= _HOST_CHARS_MAX:
            is_allowed = self._is_allowed_cached
        if not self._checked or is_allowed(host):
            return

        expected = "a name in allowed_hosts"
        if self._loopback:
            expected = f"a loopback address or {expected}"
        raise PermissionDenied.of_field("host", repr(host[:80]), expected)

    def _is_allowed(self, host: str) -> bool:
        name = host_name(host)
        return (
            name in self._names
            or (self._loopback and on_loopback(name))
            or (self._addresses and is_address(name))
        )
