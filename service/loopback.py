"""Addresses that only this machine can reach."""

from __future__ import annotations

from ipaddress import ip_address


def on_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        # Another name may resolve to any address: it counts as reachable.
        return host == "localhost"
