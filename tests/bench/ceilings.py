"""Servers that do nothing, in the stacks that carry the service: what their transport alone allows.

`python -m tests.bench.ceilings http|grpc PORT BYTES` answers every request with BYTES zeros: uvicorn with uvloop and
httptools around a bare ASGI application, grpc.aio around a bare method.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc

from tests.bench.services import Program

METHOD = "/Echo/Echo"


def start(kind: str, port: int, size: int, log: Path) -> Program:
    """Starts one and waits for its first answer."""

    def ready() -> bool:
        try:
            if kind == "grpc":
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    return bool(channel.unary_unary(METHOD)(b"", timeout=5))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", b"", timeout=5) as answer:
                return bool(answer.read())
        except (OSError, urllib.error.URLError, grpc.RpcError):
            return False

    return Program([sys.executable, "-m", "tests.bench.ceilings", kind, str(port), str(size)], ready, log)


def _http(port: int, body: bytes) -> None:
    import uvicorn

    head = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/octet-stream")],
    }

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send(head)
        await send({"type": "http.response.body", "body": body})

    uvicorn.run(echo, port=port, log_level="warning", access_log=False)


async def _grpc(port: int, body: bytes) -> None:
    async def echo(_request: bytes, _context: Any) -> bytes:
        return body

    server = grpc.aio.server()
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Serves until it is ended."""
    kind, port, body = sys.argv[1], int(sys.argv[2]), bytes(int(sys.argv[3]))
    if kind == "http":
        _http(port, body)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_grpc(port, body))


if __name__ == "__main__":
    main()
