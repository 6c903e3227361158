"""The clients: `Client` for programs that wait, `AsyncClient` for programs with an event loop. Both
have the same calls with the same arguments.

with Client("grpc://127.0.0.1:9090") as client:
    for neighbor in client.retrieve({"user_id": 5}, k=10, attributes=["title"])[0]:
        print(neighbor.id, neighbor.score, neighbor.attributes["title"])
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from rowcast_client import calls, change_calls, changes
from rowcast_client.arguments import argument_names, check_arguments
from rowcast_client.calls import Call
from rowcast_client.errors import InvalidArgument, RowcastError
from rowcast_client.retries import Deadline
from rowcast_client.rotation import combined_failure
from rowcast_client.service_connection import ELSEWHERE, ServiceConnection, check_passing
from rowcast_client.transport import Transport

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])


def _with_signature(method: Method, pack: Callable[..., Any]) -> Method:
    """Returns a method with the name, docstring and parameters of `pack`, as `help` shows them."""
    functools.update_wrapper(method, pack)
    client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(pack)
    parameters = [client, *signature.parameters.values()]
    # Functions have no attribute of this name for type checkers.
    wrapped: Any = method
    wrapped.__signature__ = signature.replace(parameters=parameters)
    return method


def _packed(
    pack: Callable[Arguments, Call[Result]],
    *arguments: Arguments.args,
    **options: Arguments.kwargs,
) -> Call[Result]:
    """Returns the call of `pack`, or raises a TypeError that names the method and its arguments."""
    if not options.keys() <= argument_names(pack).keys():
        check_arguments(pack.__name__, pack, arguments, options)
    try:
        return pack(*arguments, **options)
    except TypeError:
        check_arguments(pack.__name__, pack, arguments, options)
        raise


def _synchronous_method(
    pack: Callable[Arguments, Call[Result]],
) -> Callable[Concatenate[Client, Arguments], Result]:
    """Returns the method of `Client` that sends the calls of `pack`."""

    def method(self: Client, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self.send(_packed(pack, *arguments, **options))

    return _with_signature(method, pack)


def _asynchronous_method(
    pack: Callable[Arguments, Call[Result]],
) -> Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Result]]:
    """Returns the method of `AsyncClient` that sends the calls of `pack`."""

    async def method(
        self: AsyncClient, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        return await self.send(_packed(pack, *arguments, **options))

    return _with_signature(method, pack)


class Client(ServiceConnection):
    """A service's calls, each waiting for its response. Threads may share a client."""

    asynchronous = False

    retrieve = _synchronous_method(calls.retrieve)
    rank = _synchronous_method(calls.rank)
    recommend = _synchronous_method(calls.recommend)
    embed = _synchronous_method(calls.embed)
    lookup = _synchronous_method(calls.lookup)
    upsert_candidates = _synchronous_method(change_calls.upsert_candidates)
    delete_candidates = _synchronous_method(change_calls.delete_candidates)
    set_candidate_attributes = _synchronous_method(change_calls.set_candidate_attributes)
    upsert_contexts = _synchronous_method(change_calls.upsert_contexts)
    delete_contexts = _synchronous_method(change_calls.delete_contexts)
    set_context_attributes = _synchronous_method(change_calls.set_context_attributes)
    changes = _synchronous_method(changes.changes)
    models = _synchronous_method(calls.models)
    model = _synchronous_method(calls.model)

    def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline
        allows.

        Raises:
          RowcastError: The call failed.
        """
        deadline, request_id = self._begin(call)
        for attempt in itertools.count(1):
            try:
                return self._attempt(call, deadline, request_id)
            except RowcastError as failure:
                # Raises the failure if another attempt is of no use.
                wait_s = self._retries.wait_s(failure, attempt, deadline)
            time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, call: Call[Result], deadline: Deadline, request_id: str) -> Result:
        """Sends a call to one address after another, until a service responds."""
        failures: list[RowcastError] = []
        for transport in self._rotation.order():
            try:
                return self._exchange(transport, call, deadline, request_id)
            except ELSEWHERE as failure:
                failures.append(failure)
            if deadline.is_over():
                break
        raise combined_failure(failures)

    def _exchange(
        self, transport: Transport, call: Call[Result], deadline: Deadline, request_id: str
    ) -> Result:
        """Sends a call to one address."""
        with self._failures(transport, deadline, request_id):
            # A URL names a model: the only one is learned once, at the cost of another request.
            if transport.lacks_model(call):
                model_list = calls.models()
                response = transport.send(model_list, deadline, request_id)
                transport.learn_model(transport.read(model_list, response))
            response = transport.send(call, deadline, request_id)
            result: Result = transport.read(call, response)
        return result

    def ready(self, *, timeout_s: float | None = None) -> bool:
        """Returns whether a service is ready, at any of the addresses: `/readyz` over HTTP, the
        standard health service over gRPC. A service that cannot be reached is not.

        Args:
          timeout_s: The timeout in seconds; None: the client's.

        Raises:
          RowcastError: The failure does not pass by itself, such as that of a secure connection.
        """
        for transport, deadline, request_id in self._probes(timeout_s):
            try:
                with self._failures(transport, deadline, request_id):
                    transport.check_probe(transport.send_probe(deadline, request_id))
            except RowcastError as failure:
                check_passing(failure)
            else:
                return True
        return False

    def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._rotation is not None:
            for transport in self._rotation.transports:
                transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ServiceConnection):
    """A service's calls, each to be awaited. Belongs to the event loop of its first call."""

    asynchronous = True
    _loop: asyncio.AbstractEventLoop | None = None

    retrieve = _asynchronous_method(calls.retrieve)
    rank = _asynchronous_method(calls.rank)
    recommend = _asynchronous_method(calls.recommend)
    embed = _asynchronous_method(calls.embed)
    lookup = _asynchronous_method(calls.lookup)
    upsert_candidates = _asynchronous_method(change_calls.upsert_candidates)
    delete_candidates = _asynchronous_method(change_calls.delete_candidates)
    set_candidate_attributes = _asynchronous_method(change_calls.set_candidate_attributes)
    upsert_contexts = _asynchronous_method(change_calls.upsert_contexts)
    delete_contexts = _asynchronous_method(change_calls.delete_contexts)
    set_context_attributes = _asynchronous_method(change_calls.set_context_attributes)
    changes = _asynchronous_method(changes.changes)
    models = _asynchronous_method(calls.models)
    model = _asynchronous_method(calls.model)

    async def send(self, call: Call[Result]) -> Result:
        """Sends a call of `rowcast_client.calls`, again while that may help and the deadline
        allows.

        Raises:
          RowcastError: The call failed.
        """
        self._check_loop()
        deadline, request_id = self._begin(call)
        for attempt in itertools.count(1):
            try:
                return await self._attempt(call, deadline, request_id)
            except RowcastError as failure:
                # Raises the failure if another attempt is of no use.
                wait_s = self._retries.wait_s(failure, attempt, deadline)
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, call: Call[Result], deadline: Deadline, request_id: str) -> Result:
        """Sends a call to one address after another, until a service responds."""
        failures: list[RowcastError] = []
        for transport in self._rotation.order():
            try:
                return await self._exchange(transport, call, deadline, request_id)
            except ELSEWHERE as failure:
                failures.append(failure)
            if deadline.is_over():
                break
        raise combined_failure(failures)

    async def _exchange(
        self, transport: Transport, call: Call[Result], deadline: Deadline, request_id: str
    ) -> Result:
        """Sends a call to one address."""
        with self._failures(transport, deadline, request_id):
            # A URL names a model: the only one is learned once, at the cost of another request.
            if transport.lacks_model(call):
                model_list = calls.models()
                response = await transport.send(model_list, deadline, request_id)
                transport.learn_model(transport.read(model_list, response))
            response = await transport.send(call, deadline, request_id)
            result: Result = transport.read(call, response)
        return result

    async def ready(self, *, timeout_s: float | None = None) -> bool:
        """Returns whether a service is ready, at any of the addresses: `/readyz` over HTTP, the
        standard health service over gRPC. A service that cannot be reached is not.

        Args:
          timeout_s: The timeout in seconds; None: the client's.

        Raises:
          RowcastError: The failure does not pass by itself, such as that of a secure connection.
        """
        self._check_loop()
        for transport, deadline, request_id in self._probes(timeout_s):
            try:
                with self._failures(transport, deadline, request_id):
                    transport.check_probe(await transport.send_probe(deadline, request_id))
            except RowcastError as failure:
                check_passing(failure)
            else:
                return True
        return False

    def _check_loop(self) -> None:
        """Checks that the connections belong to the running event loop.

        Raises:
          InvalidArgument: They belong to another one, and cannot be used by two.
        """
        running = asyncio.get_running_loop()
        # A forked process opens connections of its own, in its own loop.
        if self._rotation is None or self._process != os.getpid():
            self._loop = running
        elif self._loop is not running:
            raise InvalidArgument(
                f"the {self._name} belongs to another event loop: open one AsyncClient in each "
                "event loop"
            )

    async def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        if self._rotation is not None:
            for transport in self._rotation.transports:
                await transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
