"""Records a sample of the answered requests on disk, for the next model version to be tested with.

A model's directory holds a bounded number of files of bounded size, one JSON object a line; the
oldest file gives way to a new one. A line that is damaged or incomplete is skipped when it is read.
"""

from __future__ import annotations

import base64
import heapq
import os
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile

import orjson

from service.config import ServiceSettings, SettingsError
from service.observability import logging
from service.observability.metrics import Metrics

BODY_BYTES_MAX = 256 << 10
"""Requests with a larger body are not recorded."""
_DIRECTORY = ".rowcast-recordings"
_SUFFIX = ".jsonl"
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


class RequestWriter:
    """Writes the requests of one model. Several processes may write to its directory."""

    def __init__(self, directory: Path, file_bytes: int, files_max: int) -> None:
        """Creates the writer of a directory, which only the service's user may read.

        Args:
          file_bytes: of one file.
          files_max: of all processes together.
        """
        self._directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._descriptor = -1

    def append(self, request: RecordedRequest) -> None:
        """Writes a request; one that is larger than a file is left out.

        Raises:
          OSError: it cannot be written.
        """
        line = (
            orjson.dumps(vars(request) | {"body": base64.b64encode(request.body).decode()}) + b"\n"
        )
        if len(line) > self._file_bytes:
            return
        status = os.fstat(self._descriptor) if self._descriptor >= 0 else None
        # A file without links was removed by another process, as the oldest.
        if status is None or not status.st_nlink or status.st_size + len(line) > self._file_bytes:
            self.close()
            self._descriptor = self._open()
        os.write(self._descriptor, line)

    def close(self) -> None:
        """Closes the file."""
        descriptor = self._descriptor
        self._descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> int:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted(self._directory.glob(f"*{_SUFFIX}"))
        for oldest in files[: max(0, len(files) - self._files_max + 1)]:
            oldest.unlink(missing_ok=True)
        name = f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
        return os.open(
            self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )


class RequestLog:
    """Takes the requests that were answered and records a sample of them, in a thread
    of its own.
    """

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Starts the thread."""
        self._settings = settings
        self._metrics = metrics
        self._queue: queue.Queue[tuple[str, RecordedRequest] | None] = queue.Queue(_QUEUE_SIZE_MAX)
        self._thread = threading.Thread(
            target=self._write_forever, name="rowcast-request-log", daemon=True
        )
        self._thread.start()

    def samples(self) -> bool:
        """Returns whether to record a request, at random."""
        return random.random() < self._settings.record_rate  # noqa: S311 - no secret

    def offer(self, model: str, call: str, protobuf: bool, body: bytes) -> None:
        """Records a request, or drops it; never waits.

        Args:
          model: that answered it.
          call: its name.
          protobuf: whether the body is a protobuf message; JSON otherwise.
          body: as it came, decompressed.
        """
        if len(body) > BODY_BYTES_MAX:
            return
        try:
            self._queue.put_nowait((model, RecordedRequest(call, protobuf, body, time.time())))
        except queue.Full:
            self._metrics.count("recorded_requests", 1, "dropped")

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued and ends; gives up after a time, as a disk may hang."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _write_forever(self) -> None:
        files_max = 2 * self._settings.workers
        directory = record_directory(self._settings)
        file_bytes = self._settings.record_max_bytes // files_max
        writers: dict[str, RequestWriter] = {}
        last_problem = ""
        while (item := self._queue.get()) is not None:
            model, request = item
            writer = writers.setdefault(
                model, RequestWriter(directory / model, file_bytes, files_max)
            )
            problem = ""
            try:
                writer.append(request)
            except OSError as error:
                writer.close()
                problem = str(error)
                if problem != last_problem:
                    _log.error("request_log_unwritable", extra=logging.fields(problem=problem))
            last_problem = problem
            self._metrics.count("recorded_requests", 1, "failed" if problem else "written")
        for writer in writers.values():
            writer.close()


def record_directory(settings: ServiceSettings) -> Path:
    """Returns the directory of all recorded requests; under the root, it has a name that no model
    has.
    """
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
        TemporaryFile(dir=directory).close()
    except OSError as error:
        where = f"--record-dir (or ROWCAST_RECORD_DIR): {directory}"
        raise SettingsError(f"{where} cannot be written: {error.strerror or error}") from error


def read_newest(directory: Path, count: int) -> list[RecordedRequest]:
    """Returns the newest requests that any process recorded of a model, the newest first."""
    return heapq.nlargest(count, _read(directory), key=attrgetter("at"))


def _read(directory: Path) -> Iterator[RecordedRequest]:
    for path in directory.glob(f"*{_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:  # another process may have removed it
            for line in file:
                with suppress(
                    ValueError, TypeError, KeyError
                ):  # damaged, incomplete, or of another product version
                    entry = orjson.loads(line)
                    yield RecordedRequest(**entry | {"body": base64.b64decode(entry["body"])})
