"""Calls of other processes of the host reach the one that writes a log."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

from service.changes.hand_over import Client, Server


def test_process_that_had_too_many_open_files_is_reached_again() -> None:
    server = Server({"double": lambda number, _: 2 * number})
    address = server.writer.address
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(server.close)
        early = opened.enter_context(socket.socket(socket.AF_UNIX))
        resource.setrlimit(resource.RLIMIT_NOFILE, (early.fileno() + 10, hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with ExitStack() as filled:
            with suppress(OSError):
                while True:
                    filled.callback(os.close, os.dup(early.fileno()))
            early.connect(address)
            time.sleep(0.2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client = Client()
        opened.callback(client.close)
        assert client.call(address, "double", 4, deadline=time.monotonic() + 10) == 8
        # What was sent meanwhile has waited.
        waiting = opened.enter_context(Connection(early.detach()))
        waiting.send(("double", (5,)))
        assert waiting.poll(10)
        assert waiting.recv() == 10
