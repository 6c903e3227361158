"""Copies segments from the service that takes the changes, before the records of the log that put
them into effect.

A segment that cannot be copied does not hold up changes: the record is copied all the same, and the
candidates are searched exactly, until a later record replaces the segment, or it can be copied.
While the service cannot be reached, there are no records either, and both are waited for.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from bundle.changes.log import Record
from bundle.changes.records import SegmentName
from bundle.changes.segments import TEMPORARY, copy_segment, open_segment, publish
from bundle.errors import BundleError
from bundle.storage import files
from service.changes.locks import alone
from service.observability.logging import fields, logger

log = logger(__name__)

LOCK_SUFFIX = ".lock"
"""The end of the name of the lock, behind the name of the directory of segments."""
_LOCK_WAIT_S = 0.1
"""Time between two attempts to get the lock, or a part of a file while the service is busy."""
_AGAIN_S = 60.0
"""Time until the next attempt to copy a segment that is not used. Until then its candidates are
searched exactly; each attempt may send a whole segment.
"""


class CopyFailed(Exception):
    """The log cannot be copied now; the message says why."""


class Busy(Exception):
    """The service that takes the changes has too many requests now."""


class NoSegment(Exception):
    """The service that takes the changes does not have a segment; the message says why."""


class SegmentSource(Protocol):
    """The service that has the segments."""

    def segment_part(
        self, model: str, segment: str, file: str, offset: int, bytes_max: int
    ) -> bytes:
        """Returns a part of a file of a segment, shorter where the file ends.

        Raises:
          NoSegment: The service does not have it, or cannot read it.
          Busy: The service has too many requests now.
          CopyFailed: The service cannot be reached, or rejects the request.
        """


class SegmentsCopy(Protocol):
    """The segments of a model, which are copies."""

    @property
    def path(self) -> Path:
        """The directory of the segments."""

    @property
    def unusable(self) -> Mapping[tuple[int, str], str]:
        """Why segments are not used, by version and corpus."""

    @property
    def unusable_segments(self) -> list[SegmentName]:
        """The last segments of the corpora whose segments are not used."""

    def lacking(self, records: list[Record]) -> list[SegmentName]:
        """Returns the segments that records put into effect and that are not here."""

    def sweep(self) -> None:
        """Removes segments that the log does not name. For one process at a time."""

    def preload(self) -> None:
        """Loads segments that the log does not name yet."""

    def begin_anew(self) -> None:
        """Uses the segments that were not used before, if they are whole now."""


class SegmentCopier:
    """Copies the segments of one model. One thread uses it.

    Attributes:
      unusable: The reasons why segments are not used although an attempt was made to copy them, by
        version and corpus.
    """

    def __init__(
        self, model: str, source: SegmentSource, segments: SegmentsCopy, stopping: threading.Event
    ) -> None:
        """Creates the copier of a model.

        Args:
          model: The name of the model.
          source: The service that has the segments.
          segments: The segments of the model here.
          stopping: Set when the service stops, which ends a copy in progress.
        """
        self.unusable: Mapping[tuple[int, str], str] = {}
        self._model = model
        self._source = source
        self._segments = segments
        self._stopping = stopping
        self._mend_at = 0.0

    @contextmanager
    def copied(self, records: list[Record]) -> Iterator[None]:
        """Copies the segments that records put into effect; the records are appended within.

        One worker of a host copies, and the others wait for it.

        Raises:
          Busy: The service has too many requests now.
          CopyFailed: The service cannot be reached, or rejects the requests.
          BundleError: The log is damaged.
          OSError: The log cannot be read.
        """
        if not self._segments.lacking(records):
            yield
            return
        with self._turn():
            self._segments.sweep()
            # Read again: another worker may have copied some while this one waited.
            for segment in self._segments.lacking(records):
                # `mend` tries again once the log is copied, and says why.
                with suppress(NoSegment, BundleError, OSError):
                    self._copy_segment(segment)
            # Loaded before the records are appended, so that no request waits for it.
            self._segments.preload()
            yield

    def mend(self) -> None:
        """Copies segments that are missing or damaged here, and has them used.

        Raises:
          BundleError: The log is damaged.
          OSError: The log cannot be read.
        """
        if not self._segments.unusable:
            self.unusable = {}
            return
        if time.monotonic() < self._mend_at:
            return
        with self._alone() as lock:
            # Another worker copies. The next step tries again.
            if lock is None:
                return
            problem = ""
            for segment in self._segments.unusable_segments:
                if not self._is_whole(segment):
                    problem = problem or self._problem_of_copy(segment)
            self._segments.begin_anew()
        reason = ""
        if problem:
            reason = f"; it cannot be copied: {problem}"
        self.unusable = {key: text + reason for key, text in self._segments.unusable.items()}
        if self.unusable:
            self._mend_at = time.monotonic() + _AGAIN_S

    def _problem_of_copy(self, segment: SegmentName) -> str:
        """Copies a segment; returns why it cannot be copied now, "" if it was."""
        try:
            self._copy_segment(segment)
        except (NoSegment, Busy, CopyFailed, BundleError, OSError) as problem:
            return str(problem)
        return ""

    def _copy_segment(self, segment: SegmentName) -> None:
        """Copies a segment aside, and publishes it once every byte is verified.

        Raises:
          NoSegment: The service does not have it.
          Busy: The service has too many requests now.
          CopyFailed: The service cannot be reached, or this one stops.
          BundleError: The copy differs from its manifest.
          OSError: The disk is full or broken.
        """
        name = segment.name
        directory = self._segments.path / name
        temporary = directory.with_name(f"{TEMPORARY}{name}")

        def read(file: str, offset: int, bytes_max: int) -> bytes:
            while not self._stopping.is_set():
                try:
                    return self._source.segment_part(self._model, name, file, offset, bytes_max)
                except Busy:
                    self._stopping.wait(_LOCK_WAIT_S)
            raise CopyFailed("the service stops")

        # A process that died may have left a part of a copy.
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            copy_segment(temporary, name, segment.checksum, read)
            # A segment that is there already is damaged: only damaged and missing ones are copied.
            shutil.rmtree(directory, ignore_errors=True)
            publish(temporary, directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        log.info("segment_copied", extra=fields(model=self._model, segment=name))

    def _is_whole(self, segment: SegmentName) -> bool:
        try:
            open_segment(self._segments.path / segment.name, segment.checksum)
        except (BundleError, OSError):
            return False
        return True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until no other process of the host copies segments of the model."""
        while not self._stopping.is_set():
            with self._alone() as lock:
                if lock is not None:
                    yield
                    return
            self._stopping.wait(_LOCK_WAIT_S)
        raise CopyFailed("the service stops")

    @contextmanager
    def _alone(self) -> Iterator[int | None]:
        path = self._segments.path
        files.make_private_directory(path.parent)
        with alone(path.with_name(path.name + LOCK_SUFFIX)) as lock:
            yield lock
