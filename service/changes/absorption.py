"""Absorbs changed candidates into segments, in the background: one process of a host at a time.

A worker writes the candidates to files, and a process of its own makes a segment of them. The
record in the log that names it is appended last. So whatever dies meanwhile leaves files that
nothing names, which the next one removes.
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
_ENDED_CHECK_S = 0.2
"""Between two looks at whether the service stops."""
_PRELOAD_S = 1.5
"""Time in which the other processes load a complete segment, before the log names it."""
_PROGRAM = "service.changes.segment_build"
_SHOWN_CHARACTERS = 500
"""Of the last messages of the program that failed."""


class AbsorptionFailed(Exception):
    """Candidates were not absorbed; the message says why."""


class Absorber:
    """Absorbs the changes of models that lie under one directory. One thread uses it."""

    def __init__(self, directory: Path, stopping: threading.Event) -> None:
        """Begins.

        Args:
          directory: Of the models' logs.
          stopping: Ends what is in progress.
        """
        self._directory = directory
        self._stopping = stopping

    def absorb(self, segments: ModelSegments, slots_max: int) -> bool:
        """Absorbs changed candidates of a model, if they are due and no other process absorbs some.

        Args:
          segments: Those of the model.
          slots_max: As of `ModelSegments.planned`.

        Returns:
          Whether some were absorbed.

        Raises:
          AbsorptionFailed: The segment cannot be made.
          BundleError, OSError: The log or the disk cannot be read or written.
        """
        if not segments.is_due(slots_max):
            return False
        with alone(self._directory / _LOCK_NAME) as lock:
            if lock is None:
                return False
            segments.sweep()
            planned = segments.planned(slots_max)
            if planned is None:
                return False
            segment = self._make(segments, planned, lock)
            self._stopping.wait(_PRELOAD_S)
            if self._stopping.is_set():
                return False
            return segments.absorb(planned, segment)

    def _make(self, segments: ModelSegments, planned: PlannedAbsorption, lock: int) -> SegmentName:
        """Makes a segment; `lock`: a descriptor that the process that makes it holds, too."""
        version = planned.version
        prefix = segment_prefix(version, planned.corpus)
        name = f"{prefix}{planned.sequence}-{secrets.token_hex(4)}"
        temporary = segments.path / f"{TEMPORARY}{name}"
        write_candidates(temporary, planned.parts.batches(), planned.parts.ended)
        size = int(planned.parts.positions.size)
        indexes = {
            index: SegmentIndex(
                dim=served.entry.dim, parameters=segment_parameters(served.entry, size)
            )
            for index, served in planned.indexes.items()
        }
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
        """Has a process make the segment, and waits for it."""
        # -P: a module beside the service has no say in what is imported.
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
                _, messages = process.communicate(content, _ENDED_CHECK_S)
                break
            except subprocess.TimeoutExpired:
                content = None
                if self._stopping.is_set():
                    process.kill()
        if process.returncode:
            last_messages = messages.decode(errors="replace")[-_SHOWN_CHARACTERS:]
            raise AbsorptionFailed(
                f"the process that makes a segment ended with {process.returncode}: {last_messages}"
            )
