"""Ports that the workers of one service share, and no other service."""

from __future__ import annotations

import socket

import pytest

from service.workers.sockets import port_of, reserve


def test_port_of_a_service_that_does_not_listen_yet_is_taken() -> None:
    with reserve("HTTP", "127.0.0.1", 0) as first:
        port = port_of(first)
        with pytest.raises(OSError, match=f"HTTP cannot listen on 127.0.0.1:{port}.*in use"):
            reserve("HTTP", "127.0.0.1", port)


def test_rejected_port_can_be_reserved_once_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = port_of(listener)
        with pytest.raises(OSError, match=r"in use.*--health-grpc-port names another port"):
            reserve("health gRPC", "127.0.0.1", port)
    with reserve("gRPC", "127.0.0.1", port) as bound:
        assert port_of(bound) == port
