"""Absorbs changed candidates into segments, in the background: one process of a host at a time.

A worker writes the candidates to files, and a process of its own makes a segment of them. The
record in the log that names it is appended last. So a process that dies meanwhile leaves files that
no record names, which the next one removes.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from pathlib import Path

from bundle.changes.records import SegmentName
from bundle.changes.segments import (
    TEMPORARY,
    SegmentIndex,
    SegmentManifest,
    publish,
    write_candidates,
)
from service.changes.locks import alone
from service.changes.model_segments import ModelSegments, PlannedAbsorption, segment_prefix
from service.changes.segment_build import SegmentTask
from service.changes.segments import segment_parameters

_LOCK_NAME = ".absorbing.lock"
_STOP_CHECK_S = 0.2
"""Time between two checks of whether the service stops."""
_PRELOAD_S = 1.5
"""Time in which the other processes load a complete segment, before the log names it: they look for
one every 0.5 s, and opening one takes a tenth of a second.
"""
_PROGRAM = "service.changes.segment_build"
_MESSAGE_CHARS_MAX = 500
"""Maximum number of characters that an error quotes of the last messages of a failed program."""


class AbsorptionFailed(Exception):
    """Candidates were not absorbed; the message says why."""


class Absorber:
    """Absorbs the changes of models that lie under one directory. One thread uses it."""

    def __init__(self, directory: Path, stopping: threading.Event) -> None:
        """Creates the absorber of a directory.

        Args:
          directory: The directory of the models' logs.
          stopping: Set when the service stops, which ends an absorption in progress.
        """
        self._directory = directory
        self._stopping = stopping

    def absorb(self, segments: ModelSegments, slots_max: int) -> bool:
        """Absorbs changed candidates of a model, if they are due and no other process absorbs some.

        Args:
          segments: The segments of the model.
          slots_max: See `ModelSegments.planned`.

        Returns:
          Whether candidates were absorbed.

        Raises:
          AbsorptionFailed: The segment cannot be made.
          BundleError: The log is damaged, or the segment cannot be used.
          OSError: The log or the disk cannot be read or written.
        """
        # Without the lock, and often: most of the time nothing is due.
        if not segments.is_due(slots_max):
            return False
        with alone(self._directory / _LOCK_NAME) as lock:
            if lock is None:
                return False
            # Only under the lock: no other process is making the unfinished segments that this
            # removes.
            segments.sweep()
            planned = segments.planned(slots_max)
            if planned is None:
                # Another process has absorbed them since.
                return False
            segment = self._make(segments, planned, lock)

            # To open a segment holds the interpreter for up to 96 ms. The other processes do so
            # before the record, and not when they read it, so that their requests do not wait.
            self._stopping.wait(_PRELOAD_S)
            if self._stopping.is_set():
                return False
            return segments.absorb(planned, segment)

    def _make(self, segments: ModelSegments, planned: PlannedAbsorption, lock: int) -> SegmentName:
        """Makes a segment, and returns its name and checksum.

        Args:
          segments: The segments of the model.
          planned: The candidates.
          lock: The descriptor of the lock, which the process that makes the segment holds, too.

        Raises:
          AbsorptionFailed: The process fails.
          BundleError: The files that the process has written are damaged.
          OSError: The disk cannot be read or written.
        """
        version = planned.version
        prefix = segment_prefix(version, planned.corpus)
        # Never the name of an earlier attempt, whose files another process may have opened.
        name = f"{prefix}{planned.sequence}-{secrets.token_hex(4)}"
        temporary = segments.path / f"{TEMPORARY}{name}"
        write_candidates(temporary, planned.parts.batches(), planned.parts.ended)
        size = int(planned.parts.positions.size)
        indexes = {}
        for index, served in planned.indexes.items():
            parameters = segment_parameters(served.entry, size)
            indexes[index] = SegmentIndex(dim=served.entry.dim, parameters=parameters)
        manifest = SegmentManifest(
            model=version.model,
            version=version.version,
            fingerprint=version.fingerprint,
            corpus=planned.corpus,
            sequence=planned.sequence,
            size=size,
            indexes=indexes,
        )
        distances = {index: served.entry.distance for index, served in planned.indexes.items()}
        attributes = tuple(planned.base.filters)
        task = SegmentTask(manifest=manifest, attributes=attributes, distances=distances)
        self._run(temporary, task, lock)
        directory = segments.path / name
        return SegmentName(name=name, checksum=publish(temporary, directory))

    def _run(self, directory: Path, task: SegmentTask, lock: int) -> None:
        """Starts the process that makes a segment, and waits for its end.

        Raises:
          AbsorptionFailed: The process fails.
        """
        # With -P, a module beside the service has no say in what is imported. The process holds the
        # lock as well: if this worker dies, no other one begins while it still writes.
        command = [sys.executable, "-P", "-m", _PROGRAM, str(directory)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(lock,),
        )
        content: bytes | None = task.model_dump_json().encode()
        while True:
            try:
                _, messages = process.communicate(content, _STOP_CHECK_S)
                break
            except subprocess.TimeoutExpired:
                # The task is sent once; the next call goes on reading messages.
                content = None
                if self._stopping.is_set():
                    process.kill()
        if process.returncode:
            last_messages = messages.decode(errors="replace")[-_MESSAGE_CHARS_MAX:]
            raise AbsorptionFailed(
                f"the process that makes a segment ended with {process.returncode}: {last_messages}"
            )
