"""Small servers of both transports with prepared responses, and the ways to send calls to them."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.rpc import status_pb2
from rowcast_client import AsyncClient, Call, Client, calls
from rowcast_client.stubs import embedding_service_pb2 as pb


@dataclass(frozen=True)
class Reply:
    """What a server returns: a code of the contract, or "OK"."""

    code: str | int
    status: int
    grpc_status: str
    retry_after: str | None = None


OK = Reply("OK", 200, "OK")
OVERLOADED = Reply("OVERLOADED", 429, "RESOURCE_EXHAUSTED", "0.2")
NOT_READY = Reply("NOT_READY", 503, "UNAVAILABLE")

EMBEDDED = pb.EmbedResponse(
    model=pb.ModelSpec(name="m", version=7), vectors=np.array([0.5, 2], "<f4").tobytes(), dim=2
)


class Server:
    """Returns the replies in turn, the last one for ever, and records the requests.

    A reply is a Reply, None (no response), or bytes: a whole HTTP response, or a gRPC message.
    """

    def __init__(self, replies: list[Any]) -> None:
        self.replies = replies
        self.requests: list[tuple[float, dict[str, str], bytes]] = []
        self.connections = 0
        self.url = ""

    def next(self, headers: dict[str, str], body: bytes) -> Any:
        self.requests.append((time.monotonic(), headers, body))
        return self.replies[min(len(self.requests), len(self.replies)) - 1]


@contextmanager
def http_server(replies: list[Any], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """An HTTP/1.1 server of asyncio's streams in a thread of its own."""
    server = Server(replies)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {"": head[0]} | dict(
                    line.lower().split(": ", 1) for line in head[1:] if line
                )
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                reply = server.next(headers, body)
                if isinstance(reply, bytes):
                    writer.write(reply)
                    break
                if reply is None:
                    await reader.read()  # never responds
                    break
                writer.write(http_response(reply, headers))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    ready = threading.Event()
    ending: list[Callable[[], object]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ending.append(lambda: loop.call_soon_threadsafe(stop.set))
        listening = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls)
        scheme = "https" if tls else "http"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        ending[0]()
        thread.join()


def http_response(reply: Reply, headers: dict[str, str]) -> bytes:
    """A whole response, in the form that was accepted."""
    message = EMBEDDED if reply is OK else error_details(reply, headers)
    content = bytes(message.SerializeToString())
    lines = [
        f"HTTP/1.1 {reply.status} X",
        f"content-type: {headers['accept']}",
        f"content-length: {len(content)}",
    ]
    if reply.retry_after:
        lines.append(f"retry-after: {reply.retry_after}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def error_details(reply: Reply, headers: dict[str, str]) -> pb.ErrorDetails:
    """The error of a reply; a code that is a number is one of a newer service."""
    code: Any = f"ERROR_CODE_{reply.code}" if isinstance(reply.code, str) else reply.code
    return pb.ErrorDetails(code=code, message="a sentence", request_id=headers["x-request-id"])


def http_page(
    content: bytes, kind: str = "application/x-protobuf", status: str = "200 OK"
) -> bytes:
    """A whole response of whatever content."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@contextmanager
def grpc_server(replies: list[Any], tls: grpc.ServerCredentials | None = None) -> Iterator[Server]:
    """A gRPC server that takes any method."""
    server = Server(replies)

    def respond(body: bytes, context: Any) -> bytes:
        headers = dict(context.invocation_metadata()) | {
            "remaining_s": str(context.time_remaining())
        }
        reply = server.next(headers, body)
        if reply is None:
            threading.Event().wait(context.time_remaining() + 0.5)
            return b""
        if isinstance(reply, bytes):
            return bytes(reply)
        if reply is OK:
            return bytes(EMBEDDED.SerializeToString())
        details = error_details(reply, headers)
        status = status_pb2.Status(code=getattr(grpc.StatusCode, reply.grpc_status).value[0])
        status.details.add().Pack(details)
        trailers = [("grpc-status-details-bin", status.SerializeToString())]
        if reply.retry_after:
            trailers.append(("retry-after", reply.retry_after))
        context.set_trailing_metadata(trailers)
        context.abort(getattr(grpc.StatusCode, reply.grpc_status), "a sentence")
        raise AssertionError("abort returned")

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(respond)

    host = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Anything()])
    port = (
        host.add_secure_port("127.0.0.1:0", tls) if tls else host.add_insecure_port("127.0.0.1:0")
    )
    server.url = f"{'grpcs' if tls else 'grpc'}://127.0.0.1:{port}"
    host.start()
    try:
        yield server
    finally:
        host.stop(0).wait()


@dataclass(frozen=True)
class Way:
    """One of the four ways to send calls: a transport, and whether waiting or awaiting."""

    transport: str
    asynchronous: bool

    def __str__(self) -> str:
        return f"{self.transport}-{'async' if self.asynchronous else 'sync'}"

    def server(self, replies: list[Any], tls: Any = None) -> AbstractContextManager[Server]:
        """A server of the transport."""
        return http_server(replies, tls) if self.transport == "http" else grpc_server(replies, tls)

    def send(self, url: str | Sequence[str], *sent_calls: Call[Any], **options: Any) -> Any:
        """Returns the result of the last of the calls, all of one client with these options."""
        if self.asynchronous:
            return asyncio.run(self._awaited(url, sent_calls, options))
        with Client(url, **options) as client:
            return [client.send(call) for call in sent_calls][-1]

    async def _awaited(
        self, url: str | Sequence[str], sent_calls: Sequence[Call[Any]], options: dict[str, Any]
    ) -> Any:
        async with AsyncClient(url, **options) as client:
            return [await client.send(call) for call in sent_calls][-1]

    def ready(self, url: str | Sequence[str], timeout_s: float = 30, **options: Any) -> bool:
        """Whether the service is ready, as a client with these options finds."""
        if self.asynchronous:
            return asyncio.run(self._awaited_ready(url, timeout_s, options))
        with Client(url, **options) as client:
            return client.ready(timeout_s=timeout_s)

    async def _awaited_ready(
        self, url: str | Sequence[str], timeout_s: float, options: dict[str, Any]
    ) -> bool:
        async with AsyncClient(url, **options) as client:
            return await client.ready(timeout_s=timeout_s)


WAYS = [
    Way(transport, asynchronous) for transport in ("grpc", "http") for asynchronous in (False, True)
]
EMBED = calls.embed({"user": 5}, model="m")
"""The call that the servers expect."""
