"""Sockets that doors listen on."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from service.sockets import listen


def test_listen_on_any_free_port_listens() -> None:
    with listen("HTTP", "127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), 10):
        assert listener.getsockname()[1] > 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_every_interface_of_ipv6_is_one_of_ipv4_too(address: str) -> None:
    with listen("gRPC", "::", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((address, port), 10).close()


def test_port_that_is_taken_is_an_error_that_names_door_and_address() -> None:
    with listen("HTTP", "127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        told = rf"gRPC cannot listen on 127\.0\.0\.1:{port}: .*; is another service running there\?"
        with pytest.raises(OSError, match=told):
            listen("gRPC", "127.0.0.1", port)


def test_address_of_another_machine_is_not_told_as_taken() -> None:
    with pytest.raises(OSError, match=r"HTTP cannot listen on 203\.0\.113\.1:0: [^;(]*$"):
        listen("HTTP", "203.0.113.1", 0)


def test_limit_on_open_files_is_raised_as_far_as_the_hard_one_goes() -> None:
    asked = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000));"
        "from service.settings import ServiceSettings;"
        "from service.sockets import connections_max_of, raise_files_limit;"
        "print(raise_files_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE),"
        " connections_max_of(ServiceSettings(root='/')))"
    )
    told = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, timeout=60).stdout
    assert told.split() == ["1000", "1000", "1000", "400"]
