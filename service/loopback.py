"""Names and addresses of machines, and which of them are this one's alone."""

from __future__ import annotations

from ipaddress import ip_address


def on_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        # Another name may resolve to any address: it counts as reachable.
        return host == "localhost"


def is_address(text: str) -> bool:
    """Returns whether a text is an IP address."""
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
