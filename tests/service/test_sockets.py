"""Sockets that doors listen on."""

from __future__ import annotations

import socket

import pytest

from service.sockets import listen


def test_listen_on_any_free_port_listens() -> None:
    with listen("HTTP", "127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), 10):
        assert listener.getsockname()[1] > 0


def test_port_that_is_taken_is_an_error_that_names_door_and_address() -> None:
    with listen("HTTP", "127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        told = rf"gRPC cannot listen on 127\.0\.0\.1:{port}: .*; is another service running there\?"
        with pytest.raises(OSError, match=told):
            listen("gRPC", "127.0.0.1", port)
