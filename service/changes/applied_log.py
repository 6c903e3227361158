"""The log of one model as this process has applied it: what it says, and the versions that follow
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bundle.changes.log import ChangeLog, LogTail, LogWriter, Record
from bundle.changes.records import Change, decode_runs
from bundle.errors import BundleError
from service.changes.changed_version import ChangedVersion
from service.changes.embedding import ShardsFailed
from service.changes.log_summary import LogSummary
from service.changes.replay import replay
from service.changes.segments import SegmentDirectory
from service.errors import NotReady
from service.versions.lifecycle import VersionManager
from service.versions.loader import ShardsMissing
from service.versions.version import ModelVersion

_COPIED_BYTES = 8 << 20
"""Size of the records that are sent to a copy at a time."""
_RETRY_S = 0.5
"""Time until a version that is behind tries again. With less, it calls shards that are gone in
vain; with more, it serves an old state for longer.
"""


class AppliedLog:
    """A log, and the loaded versions that it is applied to. Safe for any number of threads.

    On a router, to apply a change may need shards. A version that misses changes because shards
    did not respond is behind: it serves its last state, takes no further change, and tries again.

    Attributes:
      model: The name of the model.
      lock: Held while the log is read or written and while versions change. A caller that combines
        several calls holds it, too.
      summary: What the log says of ids, streams and segments.
      versions: The versions that follow the log.
      problem: Why the log cannot be followed; "": it can.
    """

    def __init__(
        self, model: str, path: Path, segments: SegmentDirectory, manager: VersionManager
    ) -> None:
        """Begins without versions. Nothing is read yet.

        Args:
          model: The name of the model.
          path: The file, which need not exist.
          segments: The segments that the log names.
          manager: Serves the versions.
        """
        self.model = model
        self.lock = threading.RLock()
        self.summary = LogSummary()
        self.versions: list[ChangedVersion] = []
        self.problem = ""
        self._segments = segments
        self._manager = manager
        self._log = ChangeLog(path, model)
        self._tail = LogTail(path)
        self._behind: dict[ChangedVersion, str] = {}
        """The versions that miss changes of the log, and the reason."""
        self._retry_at = 0.0

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    @property
    def sequence(self) -> int:
        """The sequence of the last record that was read."""
        return self._log.sequence

    @property
    def whole_versions(self) -> list[ChangedVersion]:
        """The versions that miss no change of the log."""
        return [version for version in self.versions if version not in self._behind]

    @property
    def behind(self) -> str:
        """Why a version misses changes of the log; "": none does."""
        with self.lock:
            for version, problem in self._behind.items():
                return f"version {version.loaded.version} waits for shards: {problem}"
        return ""

    def attach(self, loaded: ModelVersion, serve: Callable[[ModelVersion], object]) -> None:
        """Applies the log to a version and serves it, so that the version misses no change.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it is with its changes.

        Raises:
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
          ShardsMissing: A shard that a change needs does not respond.
        """
        # Under one lock: a change that is appended meanwhile is applied before the version is
        # served, or afterwards, but never missed.
        with self.lock:
            self._read()
            version = ChangedVersion(loaded, self._segments)
            try:
                self._replay(version)
                serve(version.publish())
            except ShardsFailed as problem:
                raise ShardsMissing(f"its changes cannot be applied: {problem}") from problem
            self.versions.append(version)

    def detach(self, loaded: ModelVersion) -> None:
        """Forgets a version that is no longer served."""
        with self.lock:
            self.versions = [version for version in self.versions if version.loaded is not loaded]
            self._behind = {
                version: problem
                for version, problem in self._behind.items()
                if version.loaded is not loaded
            }
            self._forget_segments()

    def follow(self) -> None:
        """Applies what other processes have appended, and serves it.

        Raises:
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        # Called a hundred times per second. Mostly the file has not grown, and requests that change
        # the model have the lock for themselves.
        is_due = bool(self._behind) and time.monotonic() >= self._retry_at
        if not is_due and not self._log.has_news:
            return
        with self.lock:
            if is_due:
                self._catch_up()
            self._read()

    def version(self, number: int) -> ChangedVersion:
        """Returns a version that follows the log.

        Raises:
          NotReady: No version of this number follows the log any more.
        """
        for version in self.versions:
            if version.loaded.version == number:
                return version
        raise NotReady(f"version {number} of model {self.model!r} is not served any more")

    def problem_of(self, number: int) -> str:
        """Returns why a version misses changes of the log; "": it does not."""
        for version, problem in self._behind.items():
            if version.loaded.version == number:
                return problem
        return ""

    @contextmanager
    def writing(self) -> Iterator[LogWriter]:
        """Waits until no other process writes, applies the records that others have appended, and
        yields a writer. The caller holds the lock.

        Raises:
          LogUnwritable: The directory or the lock cannot be written.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        with self._log.writing() as writer:
            # A change is checked against a state that has all changes before it: no other process
            # appends until this one has written.
            self._apply_records(writer.read())
            yield writer

    def add(self, sequence: int, change: Change) -> None:
        """Applies and serves a change that was appended to the log and that no version has. The
        caller holds the lock.
        """
        self.summary.add(change)
        self.apply(sequence, change)
        self.publish()
        self._forget_segments()

    def apply(self, sequence: int, change: Change) -> None:
        """Applies a change, which was appended to the log, to the versions that lack it. The caller
        holds the lock, and calls `publish` afterwards.
        """
        for version in self.versions:
            self._apply_to(version, sequence, change)

    def publish(self) -> None:
        """Serves all versions as they are now."""
        # The state that a segment holds is not known here any more. A fresh version that applies
        # the log begins with the segment.
        if any(version.is_lost for version in self.versions):
            self.restore()
            return
        for version in self.versions:
            if version in self._behind:
                continue
            try:
                served = version.publish()
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
                continue
            self._manager.change(version.loaded, served)

    def restore(self) -> None:
        """Applies the log anew from its beginning, such as after a change was applied and not
        written. The caller holds the lock.
        """
        # Into a summary of its own: if the log cannot be read, the last state stays.
        summary = LogSummary()
        try:
            for records in self._reread():
                for run in decode_runs(records):
                    summary.add_run(run)
        except (BundleError, OSError) as problem:
            self.problem = str(problem)
            return
        self.summary = summary
        self.versions = [
            ChangedVersion(version.loaded, self._segments) for version in self.versions
        ]
        self._behind = {}
        for version in self.versions:
            try:
                self._replay(version)
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
        self.publish()

    def end(self) -> tuple[int, int]:
        """Returns the sequence and the checksum of the last record of the log."""
        with self.lock:
            self.follow()
            return self._log.sequence, self._log.checksum

    def after(self, sequence: int, checksum: int) -> list[Record]:
        """Returns records behind the last one of a copy; see `LogTail.after`."""
        return self._tail.after(sequence, checksum, _COPIED_BYTES)

    def copy(self, records: Sequence[Record]) -> int:
        """Appends records of another log and serves them; returns the sequence of the last one.

        Records that another worker has copied meanwhile are left out.

        Raises:
          BundleError: The log is damaged.
          OSError: The log cannot be read or written.
        """
        with self.lock:
            if records:
                with self.writing() as writer:
                    new = [record for record in records if record.sequence > self._log.sequence]
                    if new:
                        writer.copy(new)
                self._apply_records(new)
                self.publish()
            return self._log.sequence

    def _read(self) -> None:
        """Applies what other processes have appended since the log was read, and serves it."""
        for records in self._log.batches():
            self._apply_records(records)
        self.publish()

    def _apply_records(self, records: Sequence[Record]) -> None:
        """Applies records that were read from the log."""
        runs = decode_runs(records)
        for run in runs:
            self.summary.add_run(run)
            # Without versions, as before the first load, no record need be decoded one by one.
            if self.versions:
                for sequence, change in run.changes:
                    self.apply(sequence, change)
        if any(run.head.absorption is not None for run in runs):
            self._forget_segments()

    def _apply_to(self, version: ChangedVersion, sequence: int, change: Change) -> None:
        """Applies a change to a version, unless the version has it or misses earlier ones. A
        version falls behind if shards that the change needs do not respond.
        """
        # Changes are applied in order: one behind a gap would give other positions and vectors.
        if version in self._behind or sequence <= version.sequence:
            return
        try:
            version.apply(sequence, change)
        except ShardsFailed as problem:
            self._fall_behind(version, problem)

    def _fall_behind(self, version: ChangedVersion, problem: ShardsFailed) -> None:
        """Leaves a version with its last whole state until shards respond."""
        self._behind[version] = str(problem)
        self._retry_at = time.monotonic() + _RETRY_S

    def _catch_up(self) -> None:
        """Applies the changes that they miss to the versions that are behind."""
        for version in list(self._behind):
            try:
                self._replay(version)
                version.publish()
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
                continue
            del self._behind[version]

    def _replay(self, version: ChangedVersion) -> None:
        """Applies to a version those of the records read so far that it lacks.

        Raises:
          ShardsFailed: A shard does not respond; the version still lacks the records behind.
        """
        replay(version, self._reread(), self.summary)

    def _reread(self) -> Iterator[list[Record]]:
        """Reads the records of the log up to the last one that was read; yields them in parts."""
        last = self._log.sequence
        # By a reader of its own, in parts: a log is not compacted, and may be large. Records after
        # `last` were appended by others since, and are applied when this process reads them.
        for records in ChangeLog(self.path, self.model).batches():
            part = [record for record in records if record.sequence <= last]
            if part:
                yield part

    def _forget_segments(self) -> None:
        """Forgets the loaded segments that no version uses."""
        used: set[str] = set()
        for version in self.versions:
            for store in version.corpora.values():
                used.update(segment.name.name for segment in store.segments)
        self._segments.forget_others(used)
