"""The server below any application: what it holds connections to, whatever is answered."""

from __future__ import annotations

import asyncio
from typing import Any

from service.metrics import Metrics
from service.rest.crowd import Crowd, Patience
from service.rest.server import BoundedServer
from service.sockets import listen

ANSWER_BYTES = 16 << 20
ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answers much at once."""
    headers = [(b"content-length", str(ANSWER_BYTES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(ANSWER_BYTES)})


async def _reads_on() -> None:
    with listen("HTTP", "127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = BoundedServer(large, Metrics(), Patience(grace_s=20), Crowd(1, 1 << 30))
        serving = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(ASK)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        newer, closing = await asyncio.open_connection("127.0.0.1", port)
        assert (await newer.read()).startswith(b"HTTP/1.1 429 ")
        closing.close()
        assert len(await reader.readexactly(ANSWER_BYTES)) == ANSWER_BYTES
        latest, asking = await asyncio.open_connection("127.0.0.1", port)
        asking.write(ASK)
        assert (await latest.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.read() == b""
        for each in (writer, asking):
            each.close()
        server.should_exit = True
        await serving


def test_connection_with_an_answer_on_its_way_makes_no_room_for_a_newer_one() -> None:
    asyncio.run(asyncio.wait_for(_reads_on(), 60))
