"""Where shards listen: `HOST:PORT`, `dns:NAME:PORT` for every address of a name, `file:PATH` for a line each."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

from service.config import SettingsError

_HOST_PORT = re.compile(r"(.+):([0-9]{1,5})")


def check(source: str) -> None:
    """Raises SettingsError if a source of addresses is spelled wrongly."""
    kind, _, rest = source.partition(":")
    if kind == "file" and rest:
        return
    spelled = _HOST_PORT.fullmatch(rest if kind == "dns" else source)
    if spelled is None or not 0 < int(spelled[2]) < 1 << 16:
        expected = "HOST:PORT, dns:NAME:PORT or file:PATH"
        raise SettingsError(f"--shard-addresses (or ROWCAST_SHARD_ADDRESSES) holds {source!r}; {expected} was expected")


async def resolve(source: str) -> list[str]:
    """Returns the addresses of a source as they are now.

    Raises:
      OSError: the name does not resolve, or the file cannot be read.
    """
    kind, _, rest = source.partition(":")
    if kind == "file":
        lines = await asyncio.to_thread(Path(rest).read_text)
        return [line.strip() for line in lines.splitlines() if line.strip()]
    if kind != "dns":
        return [source]
    name, _, port = rest.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in found})
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
