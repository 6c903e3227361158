"""The clients: `Client` for programs that wait, `AsyncClient` for those of an event loop. Same calls, same arguments.

with Client("grpc://127.0.0.1:9090") as client:
    for neighbor in client.retrieve({"user_id": 5}, k=10, attributes=["title"])[0]:
        print(neighbor.id, neighbor.score, neighbor.attributes["title"])
"""

from __future__ import annotations

import functools
import inspect
import re
import uuid
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenacity import AsyncRetrying, Retrying

from rowcast_client import calls
from rowcast_client.addresses import Address, parse_address
from rowcast_client.calls import Call
from rowcast_client.errors import BadAnswer, InvalidArgument, RowcastError
from rowcast_client.identity import Place, checked_headers, identity_of
from rowcast_client.retries import Deadline, Retries

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])
TIMEOUT_S = 10.0
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
"""Request ids that a service takes; it makes its own for any other."""


def _signed(method: Method, pack: Callable[..., Any]) -> Method:
    """A method with the name, text and signature of what it sends, as `help` shows them."""
    functools.update_wrapper(method, pack)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(pack)
    wrapped: Any = method
    wrapped.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])
    return method


def _waiting(
    pack: Callable[Arguments, Call[Result]],
) -> Callable[Concatenate[Client, Arguments], Result]:
    """The method of `Client` that sends what `pack` packs."""

    def method(self: Client, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self.send(pack(*arguments, **options))

    return _signed(method, pack)


def _awaiting(
    pack: Callable[Arguments, Call[Result]],
) -> Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Result]]:
    """The method of `AsyncClient` that sends what `pack` packs."""

    async def method(self: AsyncClient, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await self.send(pack(*arguments, **options))

    return _signed(method, pack)


class _Connection:
    """What both clients keep: the address, the defaults of every call, and how they open a transport."""

    def __init__(
        self,
        url: str,
        *,
        body: str = "protobuf",
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        ca_file: Place = None,
        cert_file: Place = None,
        key_file: Place = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepares a client; connects with the first call.

        Args:
          url: `http://host:port`, `https://…`, `grpc://…` or `grpcs://…`.
          body: of HTTP: "protobuf", the fast one, or "json".
          timeout_s: time for a call, all its attempts together.
          retries: when a call is tried again; `Retries(attempts_max=1)`: never.
          ca_file: authorities trusted over TLS; None: the system's over HTTP, those that gRPC ships over gRPC.
          cert_file: certificate, PEM, for services that ask their callers for one; with key_file.
          key_file: its private key, PEM without a password.
          token: for services that ask their callers for one; over TLS, since whoever reads it may use it.
          headers: sent with every call, such as those that a proxy requires.

        Raises:
          InvalidArgument: an argument is outside what is said here.
        """
        self.address = parse_address(url)
        self._timeout_s = Deadline(timeout_s).timeout_s
        self._retries = Retries() if retries is None else retries
        if not isinstance(self._retries, Retries):
            raise InvalidArgument(f"retries is {retries!r}: expected Retries(attempts_max=..., ...)")
        self._identity = identity_of(ca_file, cert_file, key_file, token)
        if body not in ("protobuf", "json") or (body == "json" and self.address.transport == "grpc"):
            raise InvalidArgument(f"body is {body!r}: expected 'protobuf', or 'json' with an http:// address")
        self._body = body
        self._headers = checked_headers(headers or {})
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._transport: Any = None
        self._closed = False

    def _begin(self, call: Call[Any]) -> tuple[Deadline, str]:
        """The deadline and request id of a call."""
        if self._closed:
            raise InvalidArgument(f"the client of {self.address.url} is closed: open a new one")
        request_id = uuid.uuid4().hex if call.request_id is None else call.request_id
        if not isinstance(request_id, str) or not REQUEST_ID.fullmatch(request_id):
            raise InvalidArgument(f"request_id is {request_id!r}: expected 1 to 128 letters, digits and ._:/+=@-")
        return Deadline(self._timeout_s if call.timeout_s is None else call.timeout_s), request_id

    def _open(self, http: str, grpc: str) -> Any:
        """A transport; its library is imported now, since a client needs one of the two."""
        options = {"identity": self._identity, "headers": self._headers}
        if self.address.transport == "http":
            return getattr(import_module("rowcast_client.http_transport"), http)(
                self.address, body=self._body, **options
            )
        return getattr(import_module("rowcast_client.grpc_transport"), grpc)(self.address, **options)


class Client(_Connection):
    """A service's calls, each waiting for its answer. Threads may share one."""

    retrieve = _waiting(calls.retrieve)
    rank = _waiting(calls.rank)
    recommend = _waiting(calls.recommend)
    embed = _waiting(calls.embed)
    lookup = _waiting(calls.lookup)
    models = _waiting(calls.models)
    model = _waiting(calls.model)

    def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline allows.

        Raises:
          RowcastError: it failed.
        """
        deadline, request_id = self._begin(call)
        if self._transport is None:
            self._transport = self._open("HttpTransport", "GrpcTransport")
        try:
            message = self._transport.send(call, deadline, request_id)
        except RowcastError as error:
            if not error.retryable:
                raise
            retrying = Retrying(**self._retries.rules(deadline))
            message = retrying(self._send_again, [error], call, deadline, request_id)
        return _unpack(call, message, request_id, self.address)

    def _send_again(self, failed: list[RowcastError], *sent: Any) -> Any:
        """Fails as the first try did, then tries again: the rules of retries cost too much for calls that succeed."""
        if failed:
            raise failed.pop()
        return self._transport.send(*sent)

    def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Connection):
    """A service's calls, each to be awaited. Belongs to the event loop of its first call."""

    retrieve = _awaiting(calls.retrieve)
    rank = _awaiting(calls.rank)
    recommend = _awaiting(calls.recommend)
    embed = _awaiting(calls.embed)
    lookup = _awaiting(calls.lookup)
    models = _awaiting(calls.models)
    model = _awaiting(calls.model)

    async def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline allows.

        Raises:
          RowcastError: it failed.
        """
        deadline, request_id = self._begin(call)
        if self._transport is None:
            self._transport = self._open("AsyncHttpTransport", "AsyncGrpcTransport")
        try:
            message = await self._transport.send(call, deadline, request_id)
        except RowcastError as error:
            if not error.retryable:
                raise
            retrying = AsyncRetrying(**self._retries.rules(deadline))
            message = await retrying(self._send_again, [error], call, deadline, request_id)
        return _unpack(call, message, request_id, self.address)

    async def _send_again(self, failed: list[RowcastError], *sent: Any) -> Any:
        """Fails as the first try did, then tries again."""
        if failed:
            raise failed.pop()
        return await self._transport.send(*sent)

    async def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _unpack(call: Call[Result], message: Any, request_id: str, address: Address) -> Result:
    try:
        return call.unpack(message)
    except (ValueError, IndexError) as error:
        raise BadAnswer(
            f"{address.url} answered {call.method} with a message that does not hold together: {error}",
            request_id=request_id,
            address=address.url,
        ) from error
