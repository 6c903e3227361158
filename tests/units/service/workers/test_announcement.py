"""Commands find the services of this machine, whatever else has sockets of the same name."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from service.workers.announcement import Announcement, announce, find_services
from tests.e2e.process import WAIT_S, until
from tests.units.service.open_files import too_many_open_files


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """The socket of a service that is announced."""
    with announce(Announcement(1, f"/{secrets.token_hex(8)}", "")) as listener:
        yield listener


@pytest.fixture
def root(listener: socket.socket) -> str:
    """The root of the service."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(listener.getsockname())
        root: str = json.loads(connection.recv(1 << 16))["root"]
    return root


def is_known(root: str) -> bool:
    return root in [service.root for service in find_services()]


def test_service_that_had_too_many_open_files_is_found_again(
    listener: socket.socket, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert is_known(root)
    with socket.socket(socket.AF_UNIX) as early:
        with too_many_open_files():
            early.connect(listener.getsockname())
            until(lambda: "connections_wait" in caplog.messages)
            time.sleep(0.3)
        assert is_known(root)
        assert root in early.recv(1 << 16).decode()
    # However often it was tried.
    assert caplog.messages.count("connections_wait") == 1


def test_program_that_sends_a_byte_at_a_time_does_not_hold_up_commands(root: str) -> None:
    ended = threading.Event()
    with socket.socket(socket.AF_UNIX) as slow, ThreadPoolExecutor(2) as pool:
        slow.bind(f"\0rowcast-service-{secrets.token_hex(8)}")
        slow.listen()

        def trickle() -> None:
            connection, _ = slow.accept()
            with connection, suppress(OSError):
                while not ended.wait(0.2):
                    connection.sendall(b" ")

        pool.submit(trickle)
        try:
            assert pool.submit(is_known, root).result(WAIT_S)
        finally:
            ended.set()
