"""The sockets that doors listen on, and how connections are taken from them."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from typing import Any, Protocol

from service.settings import ServiceSettings

BACKLOG = 2048
CONNECTIONS_MAX = 10_000
FILES_MAX = 1 << 16
"""Open files that the process asks the kernel for, where its hard limit allows them: many systems begin with 1024."""
FILES_SHARE = 0.4
"""Of the files that the process may open, for each of both doors; the rest is for bundles and the log."""


class Taking(Protocol):
    """What takes connections until it is closed: an `asyncio.Server`, or what stands in for one."""

    def close(self) -> None:
        """Takes no more."""

    async def wait_closed(self) -> None:
        """Waits until it does."""


class Take(Protocol):
    """Begins to take connections from a socket."""

    async def __call__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        held: Callable[[], int],
        **options: Any,
    ) -> Taking:
        """Returns what takes them.

        Args:
          listener: that listens already.
          protocol: makes one for each connection.
          held: tells how many connections there are.
          options: of TLS, as asyncio's `create_server` takes them.
        """


async def take_all(
    listener: socket.socket,
    protocol: Callable[[], asyncio.Protocol],
    held: Callable[[], int],  # noqa: ARG001 - nobody to share with
    **options: Any,
) -> Taking:
    """Takes every connection: the way of a process that is alone. See Take."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(protocol, sock=listener, backlog=BACKLOG, **options)


def listen(door: str, host: str, port: int) -> socket.socket:
    """Listens on an address of this machine.

    Args:
      door: what listens, for the error.
      host: name or address; `::` is every interface, of IPv4 too.
      port: 0 for any free one.
    Raises:
      OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as problem:
        why = (problem.strerror or str(problem)).partition(" (while")[0]  # the address stands here anyway
        cure = "; is another service running there?" if problem.errno == errno.EADDRINUSE else ""
        raise OSError(f"{door} cannot listen on {host}:{port}: {why}{cure}") from problem


def raise_files_limit() -> int:
    """Raises the process' soft limit on open files towards its hard one; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


def connections_max_of(settings: ServiceSettings) -> int:
    """Returns how many connections a door takes in one process."""
    if settings.connections_max:
        return settings.connections_max
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, int(files * FILES_SHARE)))
