"""The clients: `Client` for programs that wait, `AsyncClient` for those of an event loop. Same
calls, same arguments.

with Client("grpc://127.0.0.1:9090") as client:
    for neighbor in client.retrieve({"user_id": 5}, k=10, attributes=["title"])[0]:
        print(neighbor.id, neighbor.score, neighbor.attributes["title"])
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from tenacity import AsyncRetrying, Retrying

from rowcast_client import calls, changes
from rowcast_client.calls import Call
from rowcast_client.errors import InvalidArgument, RowcastError, Unreachable
from rowcast_client.retries import Deadline, Retries
from rowcast_client.transport import File, Tls, Transport, checked_headers, parse_address

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])
TIMEOUT_S = 10.0
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
"""Request ids that a service accepts; it replaces any other."""


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

    async def method(
        self: AsyncClient, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        return await self.send(pack(*arguments, **options))

    return _signed(method, pack)


class _Connection:
    """What both clients share: the address, the defaults of every call, the transport, and what a
    failure means.
    """

    asynchronous: ClassVar[bool]

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        ca_file: File = None,
        cert_file: File = None,
        key_file: File = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepares a client; connects with the first call.

        Args:
          url: `http://host:port`, `https://…`, `grpc://…` or `grpcs://…`.
          timeout_s: time for a call, all its attempts together.
          retries: when a call is tried again; `Retries(attempts_max=1)`: never.
          ca_file: authorities trusted over TLS; None: the system's over HTTP, those that gRPC ships
            over gRPC.
          cert_file: certificate, PEM, for services that require one of their clients; with
            key_file.
          key_file: its private key, PEM without a password.
          token: The token for services that require one; over TLS, since anyone who reads it may
            use it.
          headers: sent with every call, such as those that a proxy requires.

        Raises:
          InvalidArgument: An argument is not as described here.
        """
        self.address = parse_address(url)
        self._timeout_s = Deadline(timeout_s).timeout_s
        self._retries = Retries() if retries is None else retries
        if not isinstance(self._retries, Retries):
            raise InvalidArgument(
                f"retries is {retries!r}: expected Retries(attempts_max=..., ...)"
            )
        self._tls = Tls(ca_file, cert_file, key_file) if self.address.secure else None
        authorization = {} if token is None else {"authorization": f"Bearer {token}"}
        self._headers = checked_headers({**(headers or {}), **authorization})
        self._transport: Any = None
        self._process = os.getpid()
        self._inherited: list[Any] = []
        self._closed = False

    def _begin(self, call: Call[Any]) -> tuple[Deadline, str]:
        """Opens the transport with the first call; returns the deadline and request id
        of a call.
        """
        if self._closed:
            raise InvalidArgument(f"the client of {self.address.url} is closed: open a new one")
        request_id = uuid.uuid4().hex if call.request_id is None else call.request_id
        if not isinstance(request_id, str) or not REQUEST_ID.fullmatch(request_id):
            raise InvalidArgument(
                f"request_id is {request_id!r}: expected 1 to 128 letters, digits and ._:/+=@-"
            )
        deadline = Deadline(self._timeout_s if call.timeout_s is None else call.timeout_s)
        if self._process != os.getpid():
            self._leave_inherited_connections()
        if self._transport is None:
            self._transport = self._open()
        return deadline, request_id

    def _leave_inherited_connections(self) -> None:
        """Gives this process connections of its own, after a fork.

        Both processes would read responses from the same sockets, each those of the other. The
        parent still uses the inherited ones, and may have held their locks when it forked, so they
        are neither used nor closed here.
        """
        self._inherited.append(self._transport)
        self._transport = None
        self._process = os.getpid()

    def _open(self) -> Transport:
        """A transport; its library is imported now, since a client needs one of the two."""
        if self.address.transport == "grpc":
            from rowcast_client.grpc_transport import GrpcTransport

            return GrpcTransport(self.address, self._tls, self._headers, self.asynchronous)
        from rowcast_client.http_transport import HttpTransport

        return HttpTransport(self.address, self._tls, self._headers, self.asynchronous)

    @contextmanager
    def _failures(self, deadline: Deadline, request_id: str) -> Iterator[None]:
        """Raises what an attempt fails with as an error of this client that names the service and
        the request.
        """
        try:
            try:
                yield
            except TimeoutError as error:
                raise self._transport.out_of_time(deadline) from error
            except self._transport.errors as error:
                raise self._transport.failure(error, deadline) from error
        except RowcastError as error:
            error.address = self.address.url
            if not isinstance(error, Unreachable):
                error.request_id = error.request_id or request_id
            deadline.earlier_failure = error.message
            raise


class Client(_Connection):
    """A service's calls, each waiting for its response. Threads may share a client."""

    asynchronous = False

    retrieve = _waiting(calls.retrieve)
    rank = _waiting(calls.rank)
    recommend = _waiting(calls.recommend)
    embed = _waiting(calls.embed)
    lookup = _waiting(calls.lookup)
    upsert_rows = _waiting(changes.upsert_rows)
    upsert_candidates = _waiting(changes.upsert_candidates)
    delete_candidates = _waiting(changes.delete_candidates)
    set_candidate_attributes = _waiting(changes.set_candidate_attributes)
    upsert_contexts = _waiting(changes.upsert_contexts)
    delete_contexts = _waiting(changes.delete_contexts)
    set_context_attributes = _waiting(changes.set_context_attributes)
    changes = _waiting(changes.changes)
    models = _waiting(calls.models)
    model = _waiting(calls.model)

    def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline
        allows.

        Raises:
          RowcastError: it failed.
        """
        deadline, request_id = self._begin(call)
        result: Result = Retrying(**self._retries.rules(deadline))(
            self._attempt, call, deadline, request_id
        )
        return result

    def _attempt(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        if self._transport.lacks_model(call):
            self._transport.learn_model(self._attempt(calls.models(), deadline, request_id))
        with self._failures(deadline, request_id):
            response = self._transport.send(call, deadline, request_id)
            return self._transport.read(call, response)

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

    asynchronous = True
    _loop: asyncio.AbstractEventLoop | None = None

    retrieve = _awaiting(calls.retrieve)
    rank = _awaiting(calls.rank)
    recommend = _awaiting(calls.recommend)
    embed = _awaiting(calls.embed)
    lookup = _awaiting(calls.lookup)
    upsert_rows = _awaiting(changes.upsert_rows)
    upsert_candidates = _awaiting(changes.upsert_candidates)
    delete_candidates = _awaiting(changes.delete_candidates)
    set_candidate_attributes = _awaiting(changes.set_candidate_attributes)
    upsert_contexts = _awaiting(changes.upsert_contexts)
    delete_contexts = _awaiting(changes.delete_contexts)
    set_context_attributes = _awaiting(changes.set_context_attributes)
    changes = _awaiting(changes.changes)
    models = _awaiting(calls.models)
    model = _awaiting(calls.model)

    async def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline
        allows.

        Raises:
          RowcastError: it failed.
        """
        self._check_loop()
        deadline, request_id = self._begin(call)
        return await AsyncRetrying(**self._retries.rules(deadline))(
            self._attempt, call, deadline, request_id
        )

    async def _attempt(self, call: Call[Any], deadline: Deadline, request_id: str) -> Any:
        if self._transport.lacks_model(call):
            self._transport.learn_model(await self._attempt(calls.models(), deadline, request_id))
        with self._failures(deadline, request_id):
            async with asyncio.timeout(deadline.remaining_s()):
                response = await self._transport.send(call, deadline, request_id)
            return self._transport.read(call, response)

    def _check_loop(self) -> None:
        """Checks that the connections belong to the running event loop.

        Raises:
          InvalidArgument: They belong to another one, and cannot be used by two.
        """
        running = asyncio.get_running_loop()
        if self._transport is None or self._process != os.getpid():
            self._loop = running
        elif self._loop is not running:
            raise InvalidArgument(
                f"the client of {self.address.url} belongs to another event loop: open one "
                "AsyncClient in each event loop"
            )

    async def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
