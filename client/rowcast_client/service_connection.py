"""The base of both clients: the addresses, the defaults of every call, the transports, and the
meaning of failures.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec

from rowcast_client.addresses import Address, parse_addresses
from rowcast_client.arguments import check_arguments
from rowcast_client.calls import Call
from rowcast_client.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotReady,
    RowcastError,
    Unreachable,
)
from rowcast_client.retries import Deadline, Retries
from rowcast_client.rotation import Rotation
from rowcast_client.transport import HEADER_VALUE, File, Tls, Transport, checked_headers

Arguments = ParamSpec("Arguments")

TIMEOUT_S = 10.0
"""Timeout for all attempts of a call together, unless a client or a call sets another."""
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
"""Request ids that a service accepts; it replaces any other."""
OF_ONE_SERVICE = ("Change", "GetChanges")
"""Methods of the contract that concern the changes of one service, which others follow."""
ELSEWHERE = (Unreachable, NotReady)
"""Failures after which a call goes to the next address at once."""


def _naming_the_client(
    construct: Callable[Concatenate[Any, Arguments], None],
) -> Callable[Concatenate[Any, Arguments], None]:
    """Returns a constructor whose TypeErrors name the class that users call, and its arguments."""

    @functools.wraps(construct)
    def check_and_construct(
        self: Any, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> None:
        check_arguments(type(self).__name__, construct, (self, *arguments), options)
        construct(self, *arguments, **options)

    return check_and_construct


class ServiceConnection:
    """The connection of a client to a service at one address or several.

    Attributes:
      addresses: The addresses of the service.
    """

    asynchronous: ClassVar[bool]

    @_naming_the_client
    def __init__(
        self,
        url: str | Sequence[str],
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
          url: `http://host:port`, `https://…`, `grpc://…` or `grpcs://…`; or several addresses of
            the same service, as a list or as `grpc://a:9090,b:9090`. Calls take them in turns, and
            go to the next one if a service cannot be reached or is not ready.
          timeout_s: The timeout in seconds for all attempts of a call together.
          retries: The rules of retries; `Retries(attempts_max=1)`: none.
          ca_file: The file of trusted certificate authorities, PEM; None: The system's authorities
            over HTTP, those that gRPC ships over gRPC.
          cert_file: The file of the client's certificate, PEM, for services that require one; with
            key_file.
          key_file: The file of the certificate's private key, PEM without a password.
          token: The token for services that require one; over TLS, since anyone who reads it may
            use it.
          headers: Headers of every call, such as those that a proxy requires.

        Raises:
          InvalidArgument: An argument is not as described here.
        """
        self.addresses = parse_addresses(url)
        self._name = f"client of {', '.join(address.url for address in self.addresses)}"
        self._timeout_s = Deadline(timeout_s).timeout_s
        if retries is None:
            retries = Retries()
        if not isinstance(retries, Retries):
            raise InvalidArgument(
                f"retries is {retries!r}: expected Retries(attempts_max=..., ...)"
            )
        self._retries = retries
        self._tls: Tls | None = None
        if self.addresses[0].secure:
            self._tls = Tls(ca_file, cert_file, key_file)
        else:
            files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
            for name, file in files.items():
                if file is not None:
                    raise InvalidArgument(
                        f"{name} is '{file}', and {self.addresses[0].url} is without TLS: expected "
                        "https:// or grpcs://, or no such file"
                    )
        all_headers = dict(headers or {})
        if token is not None:
            # Secrets are in no message.
            if not (isinstance(token, str) and HEADER_VALUE.fullmatch(token)):
                raise InvalidArgument(
                    "token cannot be sent: expected a text of printable ASCII characters without "
                    "surrounding spaces and line breaks"
                )
            all_headers["authorization"] = f"Bearer {token}"
        self._headers = checked_headers(all_headers)

        # Connections are opened with the first call, in the process and event loop that make it.
        self._rotation: Any = None
        self._process = os.getpid()
        self._inherited: list[Any] = []
        self._closed = False

    def _begin(self, call: Call[Any]) -> tuple[Deadline, str]:
        """Opens the transports with the first call; returns the deadline and request id of a
        call.
        """
        request_id = call.request_id
        if request_id is None:
            request_id = _new_request_id()
        elif not isinstance(request_id, str) or not REQUEST_ID.fullmatch(request_id):
            raise InvalidArgument(
                f"request_id is {request_id!r}: expected 1 to 128 letters, digits and ._:/+=@-"
            )
        if call.method in OF_ONE_SERVICE and len(self.addresses) > 1:
            raise InvalidArgument(
                f"{call.method} was called on the {self._name}: changes belong to one service, "
                "which the others follow; open a client of its address alone"
            )
        self._open()
        return self._deadline(call.timeout_s), request_id

    def _deadline(self, timeout_s: float | None) -> Deadline:
        if timeout_s is None:
            timeout_s = self._timeout_s
        return Deadline(timeout_s)

    def _open(self) -> None:
        """Opens the transports, unless they are open."""
        if self._closed:
            raise InvalidArgument(f"the {self._name} is closed: open a new one")
        if self._process != os.getpid():
            self._leave_inherited_connections()
        if self._rotation is None:
            self._rotation = Rotation([self._transport(address) for address in self.addresses])

    def _leave_inherited_connections(self) -> None:
        """Gives this process connections of its own, after a fork.

        Both processes would read responses from the same sockets, each those of the other. The
        parent still uses the inherited ones, and may have held their locks when it forked, so they
        are neither used nor closed here.
        """
        # Referenced, since the end of the objects would close the parent's connections.
        self._inherited.append(self._rotation)
        self._rotation = None
        self._process = os.getpid()

    def _transport(self, address: Address) -> Transport:
        """Returns a transport; its library is imported now, since a client needs one of the two."""
        if address.transport == "grpc":
            from rowcast_client.grpc_transport import GrpcTransport

            return GrpcTransport(address, self._tls, self._headers, self.asynchronous)
        from rowcast_client.http_transport import HttpTransport

        return HttpTransport(address, self._tls, self._headers, self.asynchronous)

    def _failures(self, transport: Transport, deadline: Deadline, request_id: str) -> _Attempt:
        """Returns the context of an attempt at one address, whose failures it translates."""
        return _Attempt(self._rotation, transport, deadline, request_id)

    def _probes(self, timeout_s: float | None) -> Iterator[tuple[Transport, Deadline, str]]:
        """Yields the transports, each with its part of the time and the request id of a probe."""
        total = self._deadline(timeout_s)
        self._open()
        transports = self._rotation.transports
        # An equal part of what remains for each, so that one dead address does not use up the time.
        for position, transport in enumerate(transports):
            remaining_count = len(transports) - position
            deadline = Deadline(total.remaining_s() / remaining_count)
            yield transport, deadline, _new_request_id()


class _Attempt:
    """An attempt at one address: raises its failure as an error of this client that names the
    service and the request. Calls avoid an address that fails.
    """

    def __init__(
        self, rotation: Rotation, transport: Transport, deadline: Deadline, request_id: str
    ) -> None:
        self._rotation = rotation
        self._transport = transport
        self._deadline = deadline
        self._request_id = request_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None:
            self._rotation.responded(self._transport)
        elif isinstance(problem, RowcastError):
            self._note(problem)
        elif isinstance(problem, TimeoutError):
            failure: RowcastError = self._transport.out_of_time(self._deadline)
            self._note(failure)
            raise failure from problem
        elif isinstance(problem, self._transport.errors):
            failure = self._transport.failure(problem, self._deadline)
            self._note(failure)
            raise failure from problem

    def _note(self, failure: RowcastError) -> None:
        """Completes an error, and has the next calls avoid the address if it may be at fault."""
        failure.address = self._transport.address.url
        # A service that reports an exceeded deadline itself has sent its request id.
        has_no_response = isinstance(failure, DeadlineExceeded) and not failure.request_id
        if has_no_response or isinstance(failure, ELSEWHERE):
            self._rotation.failed(self._transport)
        # A service that was not reached has no log entry to look for.
        if not isinstance(failure, Unreachable):
            failure.request_id = failure.request_id or self._request_id
        self._deadline.earlier_failure = failure.message


def _new_request_id() -> str:
    return os.urandom(16).hex()


def check_passing(failure: RowcastError) -> None:
    """Raises a failure that does not pass by itself."""
    if not failure.retryable and not isinstance(failure, DeadlineExceeded):
        raise failure
