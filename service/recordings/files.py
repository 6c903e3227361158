"""Recorded calls on disk: appended one by one, two bounded files for each model and process, the older one let go.

An entry is a head (bytes and crc32c of what follows) and behind it seconds since 1970, number of the call, whether it
is protobuf, and the body as it came. What comes after a damaged or half-written entry of a file is not read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle.checksums import crc32c

CALLS = ("retrieve", "rank", "recommend", "embed", "lookup")
_HEAD, _FACTS = struct.Struct("<II"), struct.Struct("<dBB")
_NEWER, _OLDER = ".calls", ".older"


@dataclass(frozen=True)
class Recorded:
    """One call that was answered."""

    call: str
    protobuf: bool
    """Whether the body is a protobuf message; JSON otherwise."""
    body: bytes
    at: float
    """Seconds since 1970."""


class RecordingFile:
    """Where one process records the calls of one model."""

    def __init__(self, directory: Path, process: str, bytes_max: int) -> None:
        """Names the files; nobody else but the service's user may read them.

        Args:
          process: tells the files of several processes apart.
          bytes_max: of both files together.
        """
        self._directory, self._path = directory, directory / f"{process}{_NEWER}"
        self._half_bytes = bytes_max // 2
        self._descriptor: int | None = None
        self._size = 0

    def append(self, recorded: Recorded) -> None:
        """Writes a call down; one that is larger than the file may be is left out.

        Raises:
          OSError: it cannot be written.
        """
        told = _FACTS.pack(recorded.at, CALLS.index(recorded.call), recorded.protobuf) + recorded.body
        size = _HEAD.size + len(told)
        if size > self._half_bytes:
            return
        if self._descriptor is not None and self._size + size > self._half_bytes:
            self.close()
            self._path.replace(self._path.with_suffix(_OLDER))
        if self._descriptor is None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            if self._path.exists():  # of the process before this one
                self._path.replace(self._path.with_suffix(_OLDER))
            self._descriptor, self._size = os.open(self._path, flags, 0o600), 0
        os.writev(self._descriptor, [_HEAD.pack(len(told), crc32c(told)), told])
        self._size += size

    def close(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def read_newest(directory: Path, count: int, bytes_max: int) -> list[Recorded]:
    """Returns the newest calls that were recorded of a model, by all of its processes; the newest first.

    Args:
      bytes_max: read of each file.
    """
    found: list[Recorded] = []
    try:
        paths = [path for path in directory.iterdir() if path.suffix in {_NEWER, _OLDER}]
    except OSError:
        return []
    for path in paths:
        try:
            with path.open("rb") as file:
                found.extend(_entries(file.read(bytes_max)))
        except OSError:
            continue
    return sorted(found, key=lambda each: -each.at)[:count]


def _entries(data: bytes) -> Iterator[Recorded]:
    start = 0
    while start + _HEAD.size + _FACTS.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, start)
        start += _HEAD.size
        told = data[start : start + size]
        if len(told) != size or size < _FACTS.size or crc32c(told) != checksum:
            return
        at, call, protobuf = _FACTS.unpack_from(told)
        if call >= len(CALLS):  # of a later product version
            return
        yield Recorded(CALLS[call], bool(protobuf), told[_FACTS.size :], at)
        start += size
