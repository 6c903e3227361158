"""Records a sample of the successful requests on disk, to test the next model version with.

A model's directory holds a bounded number of files of bounded size, with one JSON object per line.
The oldest file gives way to a new one. A line that is damaged or incomplete is skipped when it is
read.
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

from bundle.storage.files import make_private, make_private_directory
from service.config import ServiceSettings, SettingsError
from service.observability import logging
from service.observability.metrics import Metrics

BODY_BYTES_MAX = 256 << 10
"""Requests with a larger body are not recorded."""
_DIRECTORY = ".rowcast-recordings"
_SUFFIX = ".jsonl"
_QUEUE_SIZE_MAX = 64
"""Number of requests that wait to be written: a slow disk must not fill the memory with bodies."""

_log = logging.logger(__name__)


@dataclass(frozen=True)
class RecordedRequest:
    """One request that succeeded.

    Attributes:
      call: The name of the call.
      protobuf: Whether the body is a protobuf message; JSON otherwise.
      body: The body, decompressed.
      recorded_s: The time at which the request was recorded, in seconds since 1970.
    """

    call: str
    protobuf: bool
    body: bytes
    recorded_s: float


class RequestWriter:
    """Writes the requests of one model. Several processes may write to its directory."""

    def __init__(self, directory: Path, file_bytes: int, files_max: int) -> None:
        """Creates the writer of a directory, which only the service's user may read.

        Args:
          directory: The directory of the model.
          file_bytes: The maximum size of one file.
          files_max: The maximum number of files of all processes together.
        """
        self._directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._descriptor = -1

    def append(self, request: RecordedRequest) -> None:
        """Writes a request; one that is larger than a file is left out.

        Raises:
          OSError: The request cannot be written.
        """
        entry = {
            "call": request.call,
            "protobuf": request.protobuf,
            "body": base64.b64encode(request.body).decode(),
            "at": request.recorded_s,
        }
        line = orjson.dumps(entry) + b"\n"
        if len(line) > self._file_bytes:
            return
        if not self._has_room(len(line)):
            self.close()
            self._descriptor = self._open()
        # One write of a file that is opened to append, so that lines never mix.
        os.write(self._descriptor, line)

    def _has_room(self, size_bytes: int) -> bool:
        """Returns whether there is a file, and a line still fits into it."""
        if self._descriptor < 0:
            return False
        status = os.fstat(self._descriptor)
        # A file without links was removed by another process, as the oldest.
        return bool(status.st_nlink) and status.st_size + size_bytes <= self._file_bytes

    def close(self) -> None:
        """Closes the file."""
        descriptor = self._descriptor
        self._descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> int:
        make_private_directory(self._directory)
        make_private(self._directory)
        # Names begin with the time, so that their order is that of the files' age.
        files = sorted(self._directory.glob(f"*{_SUFFIX}"))
        excess = max(0, len(files) - self._files_max + 1)
        for oldest in files[:excess]:
            oldest.unlink(missing_ok=True)
        name = f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
        return os.open(
            self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )


class RequestLog:
    """Records a sample of the successful requests, in a thread of its own."""

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
          model: The model that computed the request.
          call: The name of the call.
          protobuf: Whether the body is a protobuf message; JSON otherwise.
          body: The body, decompressed.
        """
        if len(body) > BODY_BYTES_MAX:
            return
        request = RecordedRequest(call, protobuf, body, time.time())
        try:
            self._queue.put_nowait((model, request))
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
        # At least two files, so that recordings are left when the oldest file gives way.
        files_max = 2 * self._settings.workers
        directory = record_directory(self._settings)
        file_bytes = self._settings.record_max_bytes // files_max
        writers: dict[str, RequestWriter] = {}
        last_problem = ""
        while (offer := self._queue.get()) is not None:
            model, request = offer
            if model not in writers:
                writers[model] = RequestWriter(directory / model, file_bytes, files_max)
            writer = writers[model]
            problem = ""
            outcome = "written"
            try:
                writer.append(request)
            except OSError as error:
                # The next request opens a file again: the disk may have room by then.
                writer.close()
                outcome = "failed"
                problem = str(error)
                if problem != last_problem:
                    _log.error("request_log_unwritable", extra=logging.fields(problem=problem))
            last_problem = problem
            self._metrics.count("recorded_requests", 1, outcome)
        for writer in writers.values():
            writer.close()


def record_directory(settings: ServiceSettings) -> Path:
    """Returns the directory of all recorded requests; under the root, it has a name that no model
    has.
    """
    return settings.record_dir or settings.root / _DIRECTORY


def check_writable(settings: ServiceSettings) -> None:
    """Checks at start that requests can be recorded, if the settings enable it.

    Raises:
      SettingsError: The directory cannot be written.
    """
    if not settings.record_rate:
        return
    directory = record_directory(settings)
    try:
        make_private_directory(directory)
        TemporaryFile(dir=directory).close()
    except OSError as error:
        setting = f"--record-dir (or ROWCAST_RECORD_DIR): {directory}"
        raise SettingsError(f"{setting} cannot be written: {error.strerror or error}") from error


def read_newest(directory: Path, count: int) -> list[RecordedRequest]:
    """Returns the newest requests that any process recorded of a model, the newest first."""
    return heapq.nlargest(count, _read_requests(directory), key=attrgetter("recorded_s"))


def _read_requests(directory: Path) -> Iterator[RecordedRequest]:
    for path in directory.glob(f"*{_SUFFIX}"):
        # Another process may have removed the file.
        with suppress(OSError), path.open("rb") as file:
            for line in file:
                # The line may be damaged, incomplete, or of another product version.
                with suppress(ValueError, TypeError, KeyError):
                    entry = orjson.loads(line)
                    entry["body"] = base64.b64decode(entry["body"])
                    entry["recorded_s"] = entry.pop("at")
                    yield RecordedRequest(**entry)
