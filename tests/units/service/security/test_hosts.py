"""Requests with a foreign `Host`, which web pages send after DNS rebinding."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.config import ServiceSettings
from service.errors import PermissionDenied
from service.security.hosts import AllowedHosts

FOREIGN = ("", "example.com", "example.com:8080", "127.0.0.1.example.com", "user@evil", "10.0.0.1")
LOOPBACK = ("localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "127.8.8.8")


def accepts(name: str, **settings: Any) -> bool:
    hosts = AllowedHosts(ServiceSettings(root=Path.cwd(), **settings))
    with suppress(PermissionDenied):
        hosts.check(name)
        return True
    return False


def test_error_names_the_host_and_the_setting() -> None:
    hosts = AllowedHosts(ServiceSettings(root=Path.cwd()))
    with pytest.raises(PermissionDenied, match=r"host is 'evil:1'; .* allowed_hosts was expected"):
        hosts.check("evil:1")


def test_service_on_loopback_accepts_loopback_addresses_alone() -> None:
    assert all(accepts(host) for host in LOOPBACK)
    assert not any(accepts(host) for host in FOREIGN)


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"host": "10.0.0.1"},
        {"tokens": Path("tokens")},
        {"tls_cert": Path("a"), "tls_key": Path("b"), "tls_client_ca": Path("c")},
    ],
)
def test_service_that_others_reach_or_that_authenticates_accepts_any_host(
    settings: dict[str, Any],
) -> None:
    assert all(accepts(host, **settings) for host in (*LOOPBACK, *FOREIGN))


def test_allowed_hosts_are_accepted_without_their_ports() -> None:
    allowed = {"allowed_hosts": "Example.com, other.example.com"}
    names = ("example.com", "EXAMPLE.com:80", "other.example.com")
    for host in ("127.0.0.1", "0.0.0.0"):
        assert all(accepts(name, host=host, **allowed) for name in names)
        assert not accepts("third.example.com", host=host, **allowed)
    assert accepts("localhost:8080", **allowed)
    assert not accepts("localhost:8080", host="0.0.0.0", **allowed)
