"""The addresses of a service: ports that are bound once and listened on by every worker."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn

from service.http_protocol import HttpProtocol
from service.observability import logging

if TYPE_CHECKING:
    from service.config import ServiceSettings

log = logging.logger(__name__)

Bound = TypeVar("Bound", bound=socket.socket)
_BACKLOG = 2048
"""Connections that wait to be accepted: uvicorn's default."""
UVICORN: dict[str, Any] = {
    **dict.fromkeys(("access_log", "server_header", "proxy_headers"), False),
    "log_config": None,
    "ws": "none",
}
"""Options of every HTTP server."""


def http_config(
    app: Any,
    *,
    keep_alive_s: int,
    drain_timeout_s: float,
    max_connections: int,
    ssl_context_factory: Callable[..., ssl.SSLContext] | None,
    **options: Any,
) -> uvicorn.Config:
    """Returns the configuration of uvicorn for the HTTP endpoint of an application.

    Args:
      app: The application, or its factory.
      keep_alive_s: See ServiceSettings.
      drain_timeout_s: See ServiceSettings.
      max_connections: See ServiceSettings.
      ssl_context_factory: Creates the context of TLS, in the worker; None: there is none.
      options: Further options of uvicorn.
    """
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        limit_concurrency=max_connections,
        ssl_context_factory=ssl_context_factory,
        **UVICORN,
        **options,
    )


def ssl_context(settings: ServiceSettings, *_: object) -> ssl.SSLContext:
    """Returns the TLS context of an HTTP server; uvicorn's factory, once the settings are given."""
    from service.security.tls import Certificates

    certificates = Certificates.of(settings)
    assert certificates is not None  # noqa: S101 - only called where the settings name them
    return certificates.ssl_context()


def listen(what: str, host: str, port: int, shared: bool = False) -> socket.socket:
    """Listens on an address; an error names it.

    Args:
      what: The name of the endpoint, for errors.
      host: The address.
      port: The port; 0: any free one.
      shared: Whether other processes of the service listen on the port as well.

    Raises:
      OSError: The address cannot be bound.
    """
    is_dualstack = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port),
            family=_family(host),
            backlog=_BACKLOG,
            reuse_port=shared,
            dualstack_ipv6=is_dualstack,
        )
    except OSError as problem:
        raise _bind_error(what, host, port, problem) from problem


def listen_or_any(
    what: str, host: str, port: int | None, default: int, bind: Callable[..., Bound]
) -> Bound:
    """Binds a port by `bind`. Without a port in the settings, binds the default port; or any port,
    which is logged, if another program has the default one.
    """
    if port is not None:
        return bind(what, host, port)
    try:
        return bind(what, host, default)
    except OSError as problem:
        bound = bind(what, host, 0)
        about = logging.fields(endpoint=what, port=port_of(bound), problem=str(problem))
        log.warning("port_taken", extra=about)
        return bound


class SharedPort(socket.socket):
    """A bound port. A worker process that is passed the socket has a socket of its own on the same
    port, so that the kernel spreads the connections: on a shared socket the first worker to wake up
    takes all that wait. The worker does not listen before `listen_to_requests`.

    Attributes:
      claim: A socket that keeps other services from the port; see `_claim`.
    """

    claim: socket.socket | None = None

    def close(self) -> None:
        """Closes the socket and gives up the claim."""
        if self.claim is not None:
            self.claim.close()
        super().close()

    def __reduce__(self) -> tuple[Callable[..., socket.socket], tuple[str, int]]:
        """Pickles the address."""
        host, port = self.getsockname()[:2]
        return _bind_for_requests, (host, port)


_request_sockets: list[socket.socket] = []
"""The bound sockets that uvicorn serves in this process. They are kept here because uvicorn does
not pass them to the application.
"""


def listen_to_requests() -> None:
    """Lets the kernel pass connections to this worker: from now on they wait for it."""
    for bound in _request_sockets:
        bound.listen(_BACKLOG)


def _bind_for_requests(host: str, port: int) -> socket.socket:
    bound = _bind("HTTP", host, port)
    _request_sockets.append(bound)
    return bound


def reserve(what: str, host: str, port: int) -> SharedPort:
    """Binds a port that the workers can bind as well, unless another service has it.

    Raises:
      OSError: The address cannot be bound.
    """
    if port == 0:
        return _reserve_any(what, host)
    claim = _claim(what, host, port)
    try:
        # To share the port would succeed beside another program that shares it, too. To listen
        # without sharing fails if any program without a claim listens.
        listen(what, host, port).close()
        bound = _bind(what, host, port)
    except OSError:
        claim.close()
        raise
    bound.claim = claim
    return bound


def _reserve_any(what: str, host: str) -> SharedPort:
    while True:
        # The kernel chooses no port that is bound, even if it is shared.
        bound = _bind(what, host, 0)
        try:
            bound.claim = _claim(what, host, port_of(bound))
        except OSError:
            # Another service, which has this port in its settings, is about to bind it.
            bound.close()
        else:
            return bound


def _claim(what: str, host: str, port: int) -> socket.socket:
    """Claims a port by an abstract Unix socket, which one process of a network namespace can bind
    and which ends with it. Since workers share ports (SO_REUSEPORT), the kernel would let a second
    service of the same user bind them until the workers of the first listen.

    Raises:
      OSError: Another service has claimed the port.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0rowcast:{host}:{port}")
    except OSError as problem:
        claim.close()
        raise _bind_error(what, host, port, problem) from problem
    return claim


def _bind(what: str, host: str, port: int) -> SharedPort:
    """Binds a port that other processes of the service bind as well."""
    bound = SharedPort(_family(host), socket.SOCK_STREAM)
    try:
        # A restarted service binds its port while connections of the one before it time out.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # `::` accepts connections of IPv4 as well, whatever the machine's default is.
        if host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, port))
    except OSError as problem:
        bound.close()
        raise _bind_error(what, host, port, problem) from problem
    return bound


def port_of(bound: socket.socket) -> int:
    """Returns the port of a bound socket."""
    return int(bound.getsockname()[1])


def notify(state: str) -> None:
    """Reports the state of the service to systemd (sd_notify(3)), if it expects it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # systemd writes the zero byte that begins an abstract name as @.
    if address[0] == "@":
        address = address.replace("@", "\0", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        # A service must not wait for the program that watches it.
        connection.setblocking(False)
        try:
            connection.connect(address)
            connection.send(state.encode())
        except OSError:
            return


def _family(host: str) -> socket.AddressFamily:
    if ":" in host:
        return socket.AF_INET6
    return socket.AF_INET


def _bind_error(what: str, host: str, port: int, problem: OSError) -> OSError:
    # The text of `socket.create_server` repeats the address, which this message names anyway.
    reason = (problem.strerror or str(problem)).partition(" (while")[0]
    hint = ""
    if problem.errno == errno.EADDRINUSE:
        option = f"--{what.lower().replace(' ', '-')}-port"
        hint = f"; is another service running there? {option} names another port"
    return OSError(f"{what} cannot listen on {host}:{port}: {reason}{hint}")
