"""Calls of other processes of the host reach the one that writes a log, or end by deadlines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest

from service.changes.hand_over import Client, Server, WriterGone
from service.errors import DeadlineExceeded
from tests.e2e.process import WAIT_S
from tests.units.service.open_files import too_many_open_files

LARGE = bytes(8 << 20)


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server({"double": lambda value, _: 2 * value})) as server:
        yield server


@pytest.fixture
def client() -> Iterator[Client]:
    with closing(Client()) as client:
        yield client


def double(client: Client, address: str, value: Any = 4, timeout_s: float = WAIT_S) -> Any:
    return client.call(address, "double", value, deadline=time.monotonic() + timeout_s)


def in_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Calls a function in a thread that may hang; returns its result."""
    result: Future[Any] = Future()

    def call() -> None:
        try:
            result.set_result(function(*arguments))
        except Exception as problem:  # noqa: BLE001 - the caller gets it
            result.set_exception(problem)

    threading.Thread(target=call, daemon=True).start()
    return result


def test_process_that_had_too_many_open_files_is_reached_again(
    server: Server, client: Client
) -> None:
    with socket.socket(socket.AF_UNIX) as early:
        with too_many_open_files():
            early.connect(server.writer.address)
            time.sleep(0.2)
        assert double(client, server.writer.address) == 8


@pytest.mark.parametrize("free", range(3))
def test_process_with_too_many_open_files_sends_nothing_and_does_later(
    server: Server, client: Client, free: int
) -> None:
    address = server.writer.address
    with too_many_open_files(free), pytest.raises(WriterGone, match="Too many open files"):
        double(client, address)
    assert double(client, address) == 8


def test_large_messages_arrive_whole(server: Server, client: Client) -> None:
    assert double(client, server.writer.address, LARGE) == 2 * LARGE


@pytest.mark.parametrize(
    ("value", "response"), [(LARGE, b""), (4, b""), (4, b"\0"), (4, b"\0\0\1\0half")]
)
def test_process_that_hangs_holds_up_nobody_beyond_the_deadline(
    client: Client, value: Any, response: bytes
) -> None:
    """Whether it takes nothing, or has begun to respond."""
    address = "\0rowcast-changes-test-that-hangs"
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(address)
        hanging.listen()
        result = in_thread(double, client, address, value, 0.1)
        connection, _ = hanging.accept()
        with connection:
            connection.sendall(response)
            with pytest.raises(DeadlineExceeded, match="safe to send it again"):
                result.result(60)
