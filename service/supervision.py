"""What systemd is told of the service where it asks for it (Type=notify, WatchdogSec): that it listens, lives, ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
_BEAT_S = 1.0


def tell(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tells who supervises the process; nobody who does, or one who does not listen, is nothing to wait for.

    Args:
      state: READY, ALIVE or STOPPING.
      environment: where NOTIFY_SOCKET names a socket, one of `@` as its first character without a file.
    Source: sd_notify(3).
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.setblocking(False)
        end.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
        end.send(state.encode())


async def beat() -> None:
    """Tells that the event loop goes round, until it is cancelled; ends where nobody is there to be told."""
    while "NOTIFY_SOCKET" in os.environ:
        tell(ALIVE)
        await asyncio.sleep(_BEAT_S)
