"""One client used by several processes, as after `fork`, and by several event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from rowcast_client import AsyncClient, InvalidArgument

from tests.e2e.process import WAIT_S
from tests.units.client.conftest import Service
from tests.units.client.servers import OK, WAYS, Way, http_server

FORK = """
import os, sys
from rowcast_client import Client

client = Client(sys.argv[1])
ids = range(20)
expected = {id: client.lookup("user", [id], model="movies").vectors.tolist() for id in ids}

children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        wrong = 0
        for turn in range(20):
            id = (7 * turn + child) % len(ids)
            wrong += client.lookup("user", [id], model="movies").vectors.tolist() != expected[id]
        os._exit(min(wrong, 100))
    children.append(pid)

# The parent goes on with its own connection.
for id in ids:
    assert client.lookup("user", [id], model="movies").vectors.tolist() == expected[id]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert codes == [0, 0, 0, 0], codes
client.close()
"""


@pytest.mark.parametrize("way", [way for way in WAYS if not way.asynchronous], ids=str)
def test_client_after_a_fork_returns_each_process_its_own_responses(
    way: Way, service: Service
) -> None:
    command = [sys.executable, "-c", FORK, service.url(way)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr


def test_async_client_in_a_second_event_loop_is_rejected() -> None:
    with http_server([OK]) as server:
        client = AsyncClient(server.url)

        async def embed() -> None:
            await client.embed({"user": 5}, model="m")

        async def reject() -> None:
            with pytest.raises(InvalidArgument, match="belongs to another event loop"):
                await client.embed({"user": 5}, model="m")

        with asyncio.Runner() as first, asyncio.Runner() as second:
            first.run(embed())
            second.run(reject())
            first.run(embed())
            first.run(client.close())
