"""The hosts that requests may be sent to.

A web page can let its own name point to 127.0.0.1 (DNS rebinding), and then read the responses of a
service that only this machine reaches. Its requests have a foreign `Host`.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from service.config import ServiceSettings, SettingsError
from service.errors import PermissionDenied
from service.loopback import on_loopback

_HOSTS_MAX = 256
"""Number of values of `Host` whose check is remembered."""
_HOST_CHARS_MAX = 256
"""Length of a value that is remembered, at most: a name has at most 253 characters, and clients
choose what they send.
"""


class AllowedHosts:
    """Checks the `Host` of requests.

    Names in `allowed_hosts` are accepted, and loopback addresses where the service listens on one.
    Without `allowed_hosts` every host is accepted by a service that other machines reach, or whose
    clients authenticate: a web page has no credentials.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        """Reads from the settings which hosts are allowed.

        Raises:
          SettingsError: What is allowed is no name.
        """
        for name in settings.allowed_hosts:
            if host_name(name) != name.lower() and not _is_address(name):
                raise SettingsError(
                    f"--allowed-hosts (or ROWCAST_ALLOWED_HOSTS) has {name!r}; a name or address "
                    "without scheme and port was expected, such as 'rowcast.example.com'"
                )
        self._names = frozenset(map(str.lower, settings.allowed_hosts))
        self._loopback = on_loopback(settings.host)
        authenticated = settings.tokens is not None or settings.tls_client_ca is not None
        self._checked = bool(self._names) or (self._loopback and not authenticated)
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
        return name in self._names or (self._loopback and on_loopback(name))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """Returns the name or address in a `Host` header, without user and port, in lower case."""
    host = host.rpartition("@")[2].lower()
    if host.startswith("["):
        return host[1 : host.find("]")]
    return host.partition(":")[0]
