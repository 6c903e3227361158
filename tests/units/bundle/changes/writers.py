"""Processes that write a change log until they are killed, or until the disk is full."""

from __future__ import annotations

import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bundle.changes.log import ChangeLog
from bundle.errors import LogUnwritable


def append(log: ChangeLog, *payloads: bytes) -> list[int]:
    """Appends records behind those of others; returns their sequences."""
    with log.writing() as writer:
        writer.read()
        records = [writer.append(payload) for payload in payloads]
        writer.commit()
    return [record.sequence for record in records]


def append_until_killed(path: Path, acknowledged: Path, name: int) -> None:
    """Appends records for ever; notes each one that is acknowledged."""
    log = ChangeLog(path, "movies")
    number = 0
    with acknowledged.open("ab", buffering=0) as file:
        while True:
            payload = f"{name} {number}".encode()
            append(log, payload)
            file.write(payload + b"\n")
            number += 1


def append_with_little_room(path: Path) -> str:
    """Appends a record to a file that may grow by 20 bytes; returns what the error says."""
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
    try:
        append(ChangeLog(path, "movies"), b"more than fits" * 10)
    except LogUnwritable as problem:
        return str(problem)
    return "it was written"


def send(connection: Connection, function: Callable[[Path], str], path: Path) -> None:
    """Sends what a function returns."""
    connection.send(function(path))
