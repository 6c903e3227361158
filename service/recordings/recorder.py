"""Some of the calls that are answered, written down for the version to come, in a thread that holds nobody up."""

from __future__ import annotations

import queue
import random
import threading
import time
from pathlib import Path

from service import logs
from service.recordings.files import Recorded, RecordingFile

_log = logs.logger(__name__)

BODY_BYTES_MAX = 256 << 10
"""A call with a larger body is not recorded."""
_WAITING_MAX = 64
"""Calls that wait to be written; one more is left out."""


class Recorder:
    """Takes what doors offer, and keeps a sample of it.

    Attributes:
      outcomes: how many calls of the sample were written, left_out (too many waited) and failed (could not be written).
    """

    def __init__(self, directory: Path, rate: float, bytes_max: int, process: str) -> None:
        """Begins to wait for calls.

        Args:
          directory: of all recordings.
          rate: share of the calls that is kept, 0 to 1.
          bytes_max: of a model's recordings by this process.
          process: tells its files from those of others.
        """
        self._directory, self._rate, self._bytes_max, self._process = directory, rate, bytes_max, process
        self._waiting: queue.Queue[tuple[str, Recorded] | None] = queue.Queue(_WAITING_MAX)
        self._files: dict[str, RecordingFile] = {}
        self._problem = ""
        self.outcomes = {"written": 0, "left_out": 0, "failed": 0}
        self._thread = threading.Thread(target=self._write_for_ever, name="rowcast-recorder", daemon=True)
        self._thread.start()

    def offer(self, model: str, call: str, protobuf: bool, body: bytes) -> None:
        """Keeps a call, or does not; never waits.

        Args:
          model: that answered it.
          call: one of `files.CALLS`.
          protobuf: whether the body is a protobuf message; JSON otherwise.
          body: as it came, decompressed.
        """
        if random.random() >= self._rate or len(body) > BODY_BYTES_MAX:  # noqa: S311 - a sample, no secret
            return
        try:
            self._waiting.put_nowait((model, Recorded(call, protobuf, body, time.time())))
        except queue.Full:
            self.outcomes["left_out"] += 1

    def close(self) -> None:
        """Writes what waits, and ends."""
        self._waiting.put(None)
        self._thread.join()

    def _write_for_ever(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            model, recorded = waiting
            file = self._files.get(model)
            if file is None:
                directory = self._directory / model
                file = self._files[model] = RecordingFile(directory, self._process, self._bytes_max)
            try:
                file.append(recorded)
            except OSError as problem:
                file.close()
                self.outcomes["failed"] += 1
                if str(problem) != self._problem:
                    _log.error("recordings_unwritable", extra=logs.fields(problem=str(problem)))
                self._problem = str(problem)
            else:
                self.outcomes["written"] += 1
                self._problem = ""
        for file in self._files.values():
            file.close()
