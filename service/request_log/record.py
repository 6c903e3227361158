"""Records a sample of the answered requests on disk, for the next model version to be tested with.

A model's directory holds a bounded number of segments of bounded size; the oldest gives way to a new one. An entry is
a header (size and crc32c of what follows), seconds since 1970, number of the call, 1 for protobuf, and the body.
"""

from __future__ import annotations

import os
import queue
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from bundle.checksums import crc32c
from service.config import ServiceSettings, SettingsError
from service.observability import logging
from service.observability.metrics import Metrics

CALLS = ("retrieve", "rank", "recommend", "embed", "lookup")
BODY_BYTES_MAX = 256 << 10
"""Requests with a larger body are not recorded."""
_DIRECTORY, _SUFFIX = ".rowcast-recordings", ".requests"
_HEADER, _FACTS = struct.Struct("<II"), struct.Struct("<dBB")
_QUEUE_SIZE_MAX = 64

_log = logging.logger(__name__)


@dataclass(frozen=True)
class RecordedRequest:
    """One request that was answered.

    Attributes:
      protobuf: whether the body is a protobuf message; JSON otherwise.
      at: seconds since 1970.
    """

    call: str
    protobuf: bool
    body: bytes
    at: float


class SegmentWriter:
    """Writes the requests of one model. Several processes may write to its directory."""

    def __init__(self, directory: Path, segment_bytes: int, segments_max: int) -> None:
        """Names the directory, which only the service's user may read.

        Args:
          segment_bytes: of one file.
          segments_max: of all processes together.
        """
        self._directory, self._segment_bytes, self._segments_max = directory, segment_bytes, segments_max
        self._descriptor: int | None = None
        self._size = 0

    def append(self, request: RecordedRequest) -> None:
        """Writes a request; one that is larger than a segment is left out.

        Raises:
          OSError: it cannot be written.
        """
        entry = _FACTS.pack(request.at, CALLS.index(request.call), request.protobuf) + request.body
        size = _HEADER.size + len(entry)
        if size > self._segment_bytes:
            return
        if self._descriptor is not None:
            removed = not os.fstat(self._descriptor).st_nlink  # by another process, as the oldest
            if removed or self._size + size > self._segment_bytes:
                self.close()
        if self._descriptor is None:
            self._descriptor, self._size = self._open(), 0
        os.writev(self._descriptor, [_HEADER.pack(len(entry), crc32c(entry)), entry])
        self._size += size

    def close(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        segments = sorted(self._directory.glob(f"*{_SUFFIX}"))
        for oldest in segments[: max(0, len(segments) - self._segments_max + 1)]:
            oldest.unlink(missing_ok=True)
        name = f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._directory / name, flags, 0o600)


class RequestLog:
    """Takes the requests that were answered and records a sample of them, in a thread of its own."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Starts the thread."""
        self._directory, self._rate, self._metrics = record_directory(settings), settings.record_rate, metrics
        self._segments_max = 2 * settings.workers
        self._segment_bytes = settings.record_max_bytes // self._segments_max
        self._queue: queue.Queue[tuple[str, RecordedRequest] | None] = queue.Queue(_QUEUE_SIZE_MAX)
        self._thread = threading.Thread(target=self._write_forever, name="rowcast-request-log", daemon=True)
        self._thread.start()

    def offer(self, model: str, call: str, protobuf: bool, body: bytes) -> None:
        """Records a request, or does not; never waits.

        Args:
          model: that answered it.
          call: one of CALLS.
          protobuf: whether the body is a protobuf message; JSON otherwise.
          body: as it came, decompressed.
        """
        if random.random() >= self._rate or len(body) > BODY_BYTES_MAX:  # noqa: S311 - a sample, no secret
            return
        try:
            self._queue.put_nowait((model, RecordedRequest(call, protobuf, body, time.time())))
        except queue.Full:
            self._metrics.recorded("dropped")

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued and ends; gives up after a time, as a disk may hang."""
        until = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(max(0.0, until - time.monotonic()))

    def _write_forever(self) -> None:
        writers: dict[str, SegmentWriter] = {}
        last_problem = ""
        while (item := self._queue.get()) is not None:
            model, request = item
            if model not in writers:
                writers[model] = SegmentWriter(self._directory / model, self._segment_bytes, self._segments_max)
            try:
                writers[model].append(request)
            except OSError as error:
                writers[model].close()
                self._metrics.recorded("failed")
                if (problem := str(error)) != last_problem:
                    _log.error("request_log_unwritable", extra=logging.fields(problem=problem))
                last_problem = problem
            else:
                self._metrics.recorded("written")
                last_problem = ""
        for writer in writers.values():
            writer.close()


def record_directory(settings: ServiceSettings) -> Path:
    """Returns the directory of all recorded requests; under the root, it has a name that no model has."""
    return settings.record_dir or settings.root / _DIRECTORY


def check_writable(settings: ServiceSettings) -> None:
    """Checks at start that requests can be recorded, if the settings ask for it.

    Raises:
      SettingsError: the directory cannot be written.
    """
    if not settings.record_rate:
        return
    directory = record_directory(settings)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            return
    except OSError as error:
        raise SettingsError(
            f"--record-dir (or ROWCAST_RECORD_DIR): {directory} cannot be written: {error.strerror or error}"
        ) from error


def read_newest(directory: Path, count: int, bytes_max: int) -> list[RecordedRequest]:
    """Returns the newest requests that any process recorded of a model, the newest first.

    Args:
      bytes_max: read of each segment.
    """
    found: list[RecordedRequest] = []
    for segment in directory.glob(f"*{_SUFFIX}"):
        try:
            with segment.open("rb") as file:
                found.extend(_entries(file.read(bytes_max)))
        except OSError:
            continue
    return sorted(found, key=lambda request: -request.at)[:count]


def _entries(data: bytes) -> Iterator[RecordedRequest]:
    """Reads entries up to the first that is damaged or incomplete."""
    start = 0
    while start + _HEADER.size + _FACTS.size <= len(data):
        size, checksum = _HEADER.unpack_from(data, start)
        start += _HEADER.size
        entry = data[start : start + size]
        if len(entry) != size or size < _FACTS.size or crc32c(entry) != checksum:
            return
        at, call, protobuf = _FACTS.unpack_from(entry)
        if call >= len(CALLS):  # of a later product version
            return
        yield RecordedRequest(CALLS[call], bool(protobuf), entry[_FACTS.size :], at)
        start += size
