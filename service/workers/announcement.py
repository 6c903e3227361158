"""How commands on the same machine find a running service: by its root.

A supervisor says on a Unix socket of Linux's abstract namespace what it serves. There is no file
that could be left behind or cleaned, and no port that another program could have.

The supervisor imports this module, so that it must stay light.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from service.connections import connections

_PREFIX = "rowcast-service-"
_SOCKETS = Path("/proc/net/unix")
"""The Unix sockets of this network namespace; names of the abstract namespace begin with @."""
_TIMEOUT_S = 2.0
"""Time that the other end has to send or receive an announcement as a whole: it may hang."""
_BYTES_MAX = 1 << 16
"""Largest size of an announcement that is read: any program can bind such a socket."""
_CREDENTIALS = struct.Struct("3i")
"""The layout of the process, user and group at a socket's other end (unix(7), SO_PEERCRED)."""
_LOOPBACK_BY_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - addresses to connect to
"""The loopback address to connect to, by an address that stands for all interfaces."""


@dataclass(frozen=True)
class Announcement:
    """A running service.

    Attributes:
      pid: The process id of the supervisor, in the namespace of the process that reads it.
      root: The absolute path of the root, as it was given.
      admin: The URL of the admin API; "": there is none.
    """

    pid: int
    root: str
    admin: str


def admin_url(host: str, port: int, tls: bool) -> str:
    """Returns the URL of an admin API for programs on this machine."""
    scheme = "https" if tls else "http"
    host = _LOOPBACK_BY_ANY.get(host, host)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def announce(announcement: Announcement) -> socket.socket:
    """Sends the announcement to every process that connects, in a thread, until the returned socket
    is closed.

    Raises:
      OSError: The socket cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Not the process id: supervisors in containers that share a network are all process 1.
    listener.bind(f"\0{_PREFIX}{secrets.token_hex(8)}")
    listener.listen()
    text = json.dumps(asdict(announcement)).encode()

    def send_to_all() -> None:
        for connection in connections(listener):
            with connection, suppress(OSError):
                connection.settimeout(_TIMEOUT_S)
                connection.sendall(text)

    threading.Thread(target=send_to_all, name="announcement", daemon=True).start()
    return listener


def find_services() -> list[Announcement]:
    """Returns the services on this machine that this user may trust, by process id: the user's own
    and those of root; root trusts all.
    """
    services = list[Announcement]()
    for name in set(_socket_names()):
        # The service may have just ended, or the socket may belong to another program.
        with suppress(OSError, ValueError, TypeError):
            services.append(_read_announcement(name))
    return sorted(services, key=lambda service: service.pid)


def _socket_names() -> Iterator[str]:
    for line in _SOCKETS.read_text(errors="replace").splitlines():
        name = line.rpartition(" ")[2]
        if name.startswith(f"@{_PREFIX}"):
            yield name.removeprefix("@")


def _read_announcement(name: str) -> Announcement:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(f"\0{name}")
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        # Any user may bind such a name, and could announce another URL to which commands then go.
        if os.geteuid() not in {0, user} and user != 0:
            raise PermissionError(f"process {pid} is of user {user}")

        end = time.monotonic() + _TIMEOUT_S
        text = b""
        while (part := connection.recv(_BYTES_MAX)) and len(text) < _BYTES_MAX:
            text += part
            # A program that sends a byte at a time would hold up commands for ever.
            connection.settimeout(max(0.001, end - time.monotonic()))
    # The kernel states the process id as this process sees it, also beyond a container.
    return replace(Announcement(**json.loads(text)), pid=pid)
