"""The log of one model as this process has applied it: what it says, and the versions that follow
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from bundle.changes.log import ChangeLog, LogRewrite, LogWriter, Recovery, recover
from bundle.changes.log_lock import Writer, held
from bundle.changes.records import Change, Run, decode_runs
from bundle.errors import BundleError, LogLocked, LogsDiffer, LogUnwritable
from bundle.format.log_position import LogPosition
from bundle.storage.frames import Record
from service.changes.changed_version import ChangedVersion
from service.changes.embedding import ShardsFailed
from service.changes.log_summary import LogSummary
from service.changes.replay import apply_run, replay
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
_PAUSE_PER_RESTORE = 10
"""Time between attempts to apply a log from its beginning, as a multiple of what one takes."""
WAIT_S = 10.0
"""Time for which work in the background waits for a lock, before it is given up and tried again."""


class AppliedLog:
    """A log, and the loaded versions that it is applied to. Safe for any number of threads.

    One process of the host writes the file; the others read what it has published. The state has a
    lock of the process.

    On a router, to apply a change may need shards. A version that misses changes because shards
    did not respond is behind: it serves its last state, takes no further change, and tries again.

    Attributes:
      model: The name of the model.
      summary: What the log says of ids and streams.
      versions: The versions that follow the log.
      problem: Why the log cannot be followed; "": it can.
    """

    def __init__(self, model: str, path: Path, manager: VersionManager, writer: Writer) -> None:
        """Begins without versions. Nothing is read yet.

        Args:
          model: The name of the model.
          path: The file, which need not exist.
          manager: Serves the versions.
          writer: How other processes reach this one once it writes the log.
        """
        self.model = model
        self.summary = LogSummary()
        self.versions: list[ChangedVersion] = []
        self.problem = ""
        self._manager = manager
        self._log = ChangeLog(path, model)
        self._own = writer
        self._writer: LogWriter | None = None
        self._file_count = 0
        """That of the log when it was applied."""
        self._behind: dict[ChangedVersion, str] = {}
        """The versions that miss changes of the log, and the reason."""
        self._retry_at = 0.0
        self._unsound = ""
        """Why versions may have changes that the log does not have; "": they do not."""
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    @property
    def other_writer(self) -> Writer | None:
        """How the process is reached that writes the log; None: none has ever written it, or this
        one was the last.
        """
        writer = self._log.lock.writer()
        if writer == self._own:
            return None
        return writer

    @property
    def holders(self) -> str:
        """The processes that hold the lock of the log, for errors."""
        return self._log.lock.holders()

    @property
    def size_bytes(self) -> int:
        """The size of the log, as far as it was read."""
        return self._log.end.position

    @property
    def sequence(self) -> int:
        """The sequence of the last record that was read."""
        return self._log.sequence

    @property
    def served_sequence(self) -> int:
        """The sequence of the last record that all versions are served with."""
        return min([version.served.changes for version in self.versions], default=self.sequence)

    @property
    def behind(self) -> str:
        """Why a version has not the changes of the log; "": all have. The caller holds the
        state.
        """
        if self._unsound:
            return self._unsound
        for version, problem in self._behind.items():
            return f"version {version.loaded.version} waits for shards: {problem}"
        return ""

    def held(self, deadline: float | None = None) -> AbstractContextManager[None]:
        """Holds the state: while the log is read or written, while versions change, and while a
        caller combines several calls.

        Args:
          deadline: The monotonic time until which other threads are waited for; None: in
            `WAIT_S`.

        Raises:
          LogLocked: Another thread has held the state until the deadline.
        """
        if deadline is None:
            deadline = time.monotonic() + WAIT_S
        return held(self._lock, deadline, f"change log {self.path} is being written; try again")

    def attach(self, loaded: ModelVersion, serve: Callable[[ModelVersion], object]) -> None:
        """Applies the log to a version and serves it, so that the version misses no change.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it is with its changes.

        Raises:
          LogLocked: A thread has held the state, or a process has begun to write, for `WAIT_S`.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
          ShardsMissing: A shard that a change needs does not respond.
        """
        # Under one lock: a change that is appended meanwhile is applied before the version is
        # served, or afterwards, but never missed.
        with self.caught_up(time.monotonic() + WAIT_S):
            version = ChangedVersion(loaded, self._included(loaded))
            try:
                self._replay(version)
                serve(version.publish())
            except ShardsFailed as problem:
                raise ShardsMissing(f"its changes cannot be applied: {problem}") from problem
            self.versions.append(version)

    def detach(self, loaded: ModelVersion, deadline: float | None = None) -> None:
        """Forgets a version that is no longer served; see `held`."""
        with self.held(deadline):
            self.versions = [version for version in self.versions if version.loaded is not loaded]
            self._behind = {
                version: problem
                for version, problem in self._behind.items()
                if version.loaded is not loaded
            }

    def follow(self) -> bool:
        """Applies what other processes have appended, and serves it. Waits for no lock: if a thread
        or a process has it, the next call tries again.

        Returns:
          Whether no other thread or process had the log.

        Raises:
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        # Called many times per second. Mostly the file has not grown, and requests that change the
        # model have the lock for themselves.
        now = time.monotonic()
        is_due = bool(self._behind or self._unsound) and now >= self._retry_at
        if not is_due and not self._log.has_news:
            return True
        with suppress(LogLocked), self.held(now):
            if is_due and not self._unsound:
                self._catch_up()
            self._read(now)
            return True
        return False

    @contextmanager
    def caught_up(self, deadline: float) -> Iterator[None]:
        """Applies what other processes have appended, and serves it; holds the state to the end.

        Args:
          deadline: The monotonic time until which others are waited for.

        Raises:
          LogLocked: A thread has held the state, or a process has begun to write, until the
            deadline.
          BundleError, OSError: See `follow`.
        """
        with self.held(deadline):
            self._read(deadline)
            yield

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
        """Returns why a version has not the changes of the log; "": it has."""
        if self._unsound:
            return self._unsound
        for version, problem in self._behind.items():
            if version.loaded.version == number:
                return problem
        return ""

    def may_write(self, deadline: float) -> bool:
        """Makes this process the writer of the log if no other process of the host is, and applies
        what others have appended; returns whether it is the writer now.

        Args:
          deadline: The monotonic time until which other threads are waited for.

        Raises:
          LogLocked: Another thread has held the state until the deadline.
          LogUnwritable: The directory or the lock cannot be written.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        if self._writer is not None:
            return True
        with self.held(deadline):
            if self._writer is not None:
                return True
            writer = self._log.begin_to_write(self._own)
            if writer is None:
                return False
            try:
                self._apply_records(writer.read())
                self.publish()
                if self._unsound:
                    raise LogUnwritable(f"{self._unsound}; no change was made")
            except BaseException:
                writer.close()
                raise
            self._writer = writer
            return True

    def close(self, deadline: float | None = None) -> None:
        """Lets another process write the log; see `held`."""
        with self.held(deadline):
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    @contextmanager
    def writing(self, deadline: float) -> Iterator[LogWriter]:
        """Yields what appends records, by the process that writes the log; holds the state to the
        end.

        Args:
          deadline: The monotonic time until which other threads are waited for.

        Raises:
          LogLocked: A thread has held the state until the deadline.
          LogUnwritable: Versions have changes that the log does not have.
          NotReady: Another process writes the log now.
        """
        # A change is checked against a state that has all changes before it: this process alone
        # appends.
        with self.held(deadline):
            if self._writer is None:
                raise NotReady("another process writes the log now; no change was made")
            if self._unsound:
                self.restore()
            if self._unsound:
                raise LogUnwritable(f"{self._unsound}; no change was made")
            yield self._writer

    def recover(self, deadline: float) -> Recovery:
        """Rewrites the log without what is damaged in it, unless another process writes it; see
        `recover` of `bundle.changes.log`.

        Args:
          deadline: The monotonic time until which other threads are waited for.
        """
        self.close(deadline)
        return recover(self.path, self.model, time.monotonic())

    def changes(self, writer: LogWriter) -> Iterator[tuple[Record, Change]]:
        """Yields the records of the log and their changes, as long as this process writes it.

        Args:
          writer: What appends records.

        Raises:
          NotReady: Another process writes the log now.
          BundleError, OSError: See `ChangeLog.reread`.
        """
        for records in self._log.reread():
            self._check_writes(writer)
            runs = decode_runs(records)
            changes = [change for run in runs for _, change in run.changes]
            yield from zip(records, changes, strict=True)

    def replace(self, writer: LogWriter, rewrite: LogRewrite, position: int) -> int:
        """Puts a file in the place of the log, and applies it anew: changes wait meanwhile.

        Args:
          writer: What appends records.
          rewrite: The file, which gets what was appended since it was written.
          position: The end of the record of the log before the first such one.

        Returns:
          The number of these records.

        Raises:
          LogLocked: A thread has held the state for `WAIT_S`.
          LogUnsynced: The file is in its place, and a loss of power may bring back the one before.
          LogUnwritable: The disk is full or broken; the log is as it was.
          NotReady: Another process writes the log now.
          BundleError, OSError: See `ChangeLog.reread`.
        """
        count = 0
        with self.writing(time.monotonic() + WAIT_S):
            self._check_writes(writer)
            for records in self._log.reread(position):
                count += len(records)
                for record in records:
                    rewrite.append(record)
            writer.replace(rewrite)
            self._apply_records(writer.read())
            self.publish()
            writer.sync_directory()
        return count

    def _check_writes(self, writer: LogWriter) -> None:
        if self._writer is not writer:
            raise NotReady(f"change log {self.path} has another writer now; it was not compacted")

    def distrust(self, problem: str) -> None:
        """Has the log applied anew by the next `publish`, since versions may have changes that it
        does not have. The caller holds the state.
        """
        self._unsound = problem

    def apply(self, sequence: int, change: Change) -> None:
        """Applies a change, which was appended to the log, to the versions that lack it. The caller
        holds the state, and calls `publish` afterwards.
        """
        for version in self.versions:
            self._apply_to(version, sequence, change)

    def publish(self) -> None:
        """Serves all versions as they are now."""
        if self._unsound:
            if time.monotonic() >= self._retry_at:
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
        written. If the log cannot be read now, it is tried again later. The caller holds the state.
        """
        # Into a state of its own: if the log cannot be read, the last state stays.
        summary = LogSummary()
        versions = []
        behind = dict[ChangedVersion, ShardsFailed]()
        began = time.monotonic()
        self._retry_at = began + _RETRY_S
        try:
            for version in self.versions:
                included = self._included(version.loaded)
                versions.append(ChangedVersion(version.loaded, included))
            for records in self._log.reread():
                for run in decode_runs(records):
                    summary.add_run(run)
            for version in versions:
                try:
                    replay(version, self._log.reread(), summary)
                except ShardsFailed as problem:
                    behind[version] = problem
        except (BundleError, OSError) as problem:
            self._unsound = str(problem)
            now = time.monotonic()
            self._retry_at = now + max(_RETRY_S, _PAUSE_PER_RESTORE * (now - began))
            return
        self.summary = summary
        self.versions = versions
        self._behind = {}
        for version, failure in behind.items():
            self._fall_behind(version, failure)
        self._unsound = ""
        self.publish()

    def end(self, deadline: float | None = None) -> LogPosition | None:
        """Returns the last record of the log; None: it has none; see `held`."""
        with self.held(deadline):
            self.follow()
            return self._log.position

    def after(self, position: LogPosition | None) -> list[Record]:
        """Returns records behind the last one of a copy; see `ChangeLog.after`."""
        return self._log.after(position, _COPIED_BYTES)

    def copy(self, records: Sequence[Record]) -> int:
        """Appends records of the log that this one is a copy of, and serves them, if this process
        writes it; returns the sequence of the last record.

        Raises:
          LogsDiffer: The copy has no records yet, and these are not the first ones.
          BundleError: The log is damaged, or another thread has held the state for `WAIT_S`.
          OSError: The log cannot be read or written.
        """
        deadline = time.monotonic() + WAIT_S
        if records and self.may_write(deadline):
            with self.writing(deadline) as writer:
                new = [record for record in records if record.sequence > self._log.sequence]
                # The first record says of which log this one is a copy.
                if not self._log.identity:
                    new = [*records]
                    if new[0].sequence:
                        raise LogsDiffer(
                            f"change log {self.path} cannot be begun with record "
                            f"{new[0].sequence}: the first records of the log were expected"
                        )
                copied = writer.copy(new)
                writer.commit()
                self._apply_records(copied)
                self.publish()
        return self._log.sequence

    def _read(self, deadline: float) -> None:
        """Applies what other processes have appended since the log was read, and serves it."""
        for records in self._log.batches(deadline):
            self._apply_records(records)
        self._apply_records([])
        self.publish()

    def _apply_records(self, records: Sequence[Record]) -> None:
        """Applies records that were read from the log. If another file is in its place, or records
        before them could not be applied, `publish` applies all. The caller calls it afterwards.
        """
        # The first file is no other one, whichever process has made it.
        is_replaced = self._log.file_count > max(1, self._file_count)
        self._file_count = self._log.file_count
        if is_replaced:
            self.distrust("another file is in the place of the log")
            self._retry_at = 0.0
        # A copy can get to the record behind which a bundle lacks changes once the version is
        # loaded. Now that it has it, the version is what it is where it is loaded anew.
        if any(self._gets_to_bundle(version) for version in self.versions):
            self.distrust("the log has got to the changes that a bundle contains")
            self._retry_at = 0.0
        if self._unsound:
            return
        try:
            for run in decode_runs(records):
                self.summary.add_run(run)
                for version in self.versions:
                    self._apply_run_to(version, run)
        except Exception as problem:
            # Without this change, those behind it would leave another state.
            self.distrust(str(problem))
            raise

    def _included(self, loaded: ModelVersion) -> int:
        """Returns the sequence up to which a version contains the changes of the log; 0: none.

        Raises:
          BundleError, OSError: The log cannot be read.
        """
        included = loaded.manifest.changes_included
        # Those of another log do not count, nor those of this one that it has lost and then given
        # their sequences to others, as one does that was restored from an older copy: a change that
        # is in the log is applied unless the bundle is known to contain it.
        if included is None or not self._log.has_record(included):
            return 0
        return included.sequence

    def _gets_to_bundle(self, version: ChangedVersion) -> bool:
        """Returns whether records that were read and not applied have the last change that a
        version contains.
        """
        included = version.loaded.manifest.changes_included
        if included is None or version.included or version.sequence >= included.sequence:
            return False
        return self._included(version.loaded) > 0

    def _apply_run_to(self, version: ChangedVersion, run: Run) -> None:
        """Applies a run of changes to a version; see `_apply_to`."""
        if version in self._behind:
            return
        try:
            apply_run(version, run, self.summary)
        except ShardsFailed as problem:
            self._fall_behind(version, problem)

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
        replay(version, self._log.reread(), self.summary)
