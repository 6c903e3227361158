"""The changes of one model in one process: its log, and the loaded versions that follow it.

A change is checked against the version that it is for, appended to the log, and then served by
every loaded version. The other processes of the service read it from the log. Requests that come
while the log is written are written together.

On a router, to apply a change may need shards. A version that misses some since shards did not
respond is behind: it serves its last state, takes no further change, and tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.changes.log import RECORD_BYTES_MAX, ChangeLog, LogTail, LogWriter, Record
from bundle.changes.records import SEQUENCE, Change, decode, encode, expiring_ids
from bundle.errors import BundleError, LogUnwritable
from service.changes.changed_version import ChangedVersion, ShardsFailed
from service.changes.checks import checked_change
from service.changes.requests import ChangeRequest, ChangeResult
from service.config import ServiceSettings
from service.engine.limits import NotFinite
from service.errors import DataLoss, InvalidArgument, NotReady, ServiceError, TooLarge
from service.versions.lifecycle import VersionManager
from service.versions.loader import ShardsMissing
from service.versions.version import ModelVersion

Key = int | str
_LISTED_MAX = 100
"""Ids of each kind that a result lists."""
_COPIED_BYTES = 8 << 20
"""Of the records that are sent to a copy at a time."""
_RETRY_S = 0.5
"""Until a version that is behind tries again."""


class _Submission(NamedTuple):
    """A request that waits to be written, the version that it is for, and its result."""

    request: ChangeRequest
    version: int
    result: Future[ChangeResult]


class _Applied(NamedTuple):
    """A change that was applied, but is not in the log yet."""

    change: Change
    result: ChangeResult
    submission: _Submission


class ModelChanges:
    """The changes of one model. Safe for any number of threads.

    Attributes:
      problem: Why the log cannot be followed; "": it can.
      streams: By name of a stream, the offset behind what was applied of it.
    """

    def __init__(
        self, model: str, path: Path, settings: ServiceSettings, manager: VersionManager
    ) -> None:
        """Begins to follow a log.

        Args:
          model: The name of the model.
          path: The log, which need not exist.
          settings: The limits.
          manager: Serves the versions.
        """
        self.problem = ""
        self.streams: dict[str, int] = {}
        self._model = model
        self._settings = settings
        self._manager = manager
        self._log = ChangeLog(path, model)
        self._tail = LogTail(path)
        self._versions: list[ChangedVersion] = []
        self._behind: dict[ChangedVersion, str] = {}
        """Versions that miss changes of the log, and why."""
        self._retry_at = 0.0
        self._sequences: dict[tuple[str, str], dict[Key, int]] = {}
        self._lock = threading.RLock()
        self._submissions: list[_Submission] = []
        self._submissions_lock = threading.Lock()

    @property
    def sequence(self) -> int:
        """Of the last change that was read from the log."""
        return self._log.sequence

    def attach(self, loaded: ModelVersion, serve: Callable[[ModelVersion], object]) -> None:
        """Applies the log to a version and has it served, so that it misses no change.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it is with its changes.

        Raises:
          LogDamaged, FormatError: The log cannot be read.
          OSError: Likewise.
          ShardsMissing: A shard that a change needs does not respond.
        """
        with self._lock:
            self.follow()
            version = ChangedVersion(loaded)
            try:
                self._replay(version)
                serve(version.publish())
            except ShardsFailed as problem:
                raise ShardsMissing(f"its changes cannot be applied: {problem}") from problem
            self._versions.append(version)

    def detach(self, loaded: ModelVersion) -> None:
        """Forgets a version that is no longer served."""
        with self._lock:
            self._versions = [version for version in self._versions if version.loaded is not loaded]
            self._behind = {
                version: problem
                for version, problem in self._behind.items()
                if version.loaded is not loaded
            }

    def follow(self) -> None:
        """Applies what other processes have appended, and serves it.

        Raises:
          LogDamaged, FormatError: The log cannot be read any further.
          OSError: Likewise.
        """
        is_due = bool(self._behind) and time.monotonic() >= self._retry_at
        if not is_due and not self._log.has_news:
            return
        with self._lock:
            if is_due:
                self._catch_up()
            self._apply_records(self._log.read())
            self._publish()

    def end(self) -> tuple[int, int]:
        """Returns the sequence and the checksum of the last record of the log."""
        with self._lock:
            self.follow()
            return self._log.sequence, self._log.checksum

    def copy(self, records: Sequence[Record]) -> int:
        """Appends records of another log and serves them; returns the sequence of the last one.

        Those that another worker has copied meanwhile are left out.

        Raises:
          BundleError, OSError: The log cannot be read or written.
        """
        with self._lock:
            if records:
                with self._log.writing() as writer:
                    self._apply_records(writer.read())
                    new = [record for record in records if record.sequence > self._log.sequence]
                    if new:
                        writer.copy(new)
                self._apply_records(new)
                self._publish()
            return self._log.sequence

    def after(self, sequence: int, checksum: int) -> list[Record]:
        """Returns records behind the last one of a copy; see `LogTail.after`."""
        return self._tail.after(sequence, checksum, _COPIED_BYTES)

    def submit(self, request: ChangeRequest, version: int) -> ChangeResult:
        """Makes a change: when this returns, it is on the disk, and served by this process.

        Args:
          request: What to change.
          version: The version that it is checked against, which must be loaded.

        Raises:
          ServiceError: The request does not fit the version, or the log cannot be written; nothing
            was changed.
        """
        submission = _Submission(request, version, Future())
        with self._submissions_lock:
            self._submissions.append(submission)
        with self._lock:
            if not submission.result.done():
                with self._submissions_lock:
                    submissions = self._submissions
                    self._submissions = []
                self._write(submissions)
        return submission.result.result()

    def expire(self, now_s: float) -> None:
        """Deletes the candidates that have expired.

        Raises:
          ServiceError: The log cannot be written.
        """
        with self._lock:
            expired = [
                (version.loaded.version, corpus, ids)
                for version in self._versions
                for corpus, ids in version.expired(now_s).items()
            ]
            for number, corpus, ids in expired:
                keys: NDArray[Any] = np.array(ids, object)
                if not isinstance(ids[0], str):
                    keys = np.array(ids, np.int64)
                self.submit(ChangeRequest("candidates", "delete", keys, corpus), number)

    def status(self) -> dict[str, Any]:
        """Returns what operators are shown."""
        with self._lock:
            return {
                "log": str(self._log.path),
                "sequence": self._log.sequence,
                "problem": self.problem or self.behind,
                "streams": dict(self.streams),
                "versions": [
                    {
                        "version": version.loaded.version,
                        "sequence": version.sequence,
                        "changed": version.counts(),
                        "dropped": dict(version.dropped),
                    }
                    for version in self._versions
                ],
            }

    @property
    def behind(self) -> str:
        """Why a version misses changes of the log; "": none does."""
        with self._lock:
            for version, problem in self._behind.items():
                return f"version {version.loaded.version} waits for shards: {problem}"
        return ""

    def _write(self, submissions: Sequence[_Submission]) -> None:
        """Applies requests and appends them to the log, all at once; sets their results."""
        applied: list[_Applied] = []
        try:
            with self._log.writing() as writer:
                self._apply_records(writer.read())
                for submission in submissions:
                    applied += self._applied(submission)
                self._append(writer, applied)
        except Exception as problem:  # noqa: BLE001 - each sender is told
            if applied:
                self._restore()
            error = _error_of(problem)
            for submission in submissions:
                if not submission.result.done():
                    submission.result.set_exception(error)
            return
        self._publish()
        for _, result, submission in applied:
            missing = self._problem_of(submission.version)
            if missing:
                submission.result.set_exception(
                    NotReady(
                        f"the change is in the log, as sequence {result.sequence}, and is not "
                        f"served before shards respond: {missing}"
                    )
                )
                continue
            submission.result.set_result(result)

    def _applied(self, submission: _Submission) -> list[_Applied]:
        """Checks and applies a request; sets its result if it fails, or changes nothing."""
        try:
            change, result = self._checked(submission)
            if change is None:
                submission.result.set_result(result)
                return []
            self._version(submission.version).change(change)
        except (ServiceError, BundleError, NotFinite, ShardsFailed) as problem:
            submission.result.set_exception(_rejection(problem))
            return []
        self._note(change)
        return [_Applied(change, result, submission)]

    def _append(self, writer: LogWriter, applied: list[_Applied]) -> None:
        """Appends changes to the log, and applies them to the versions that they are not for."""
        payloads = [encode(change) for change, _, _ in applied]
        if not payloads:
            return
        sequences = writer.append(payloads)
        for number, (sequence, (change, result, submission)) in enumerate(
            zip(sequences, applied, strict=True)
        ):
            applied[number] = _Applied(change, replace(result, sequence=sequence), submission)
            for version in self._versions:
                if version.loaded.version == submission.version:
                    version.set_sequence(sequence)
                else:
                    self._apply(version, sequence, change)

    def _checked(self, submission: _Submission) -> tuple[Change | None, ChangeResult]:
        """Returns the change of a request, None if it changes nothing, and its result."""
        request = submission.request
        number = submission.version
        if request.stream and request.offset <= self.streams.get(request.stream, -1):
            return None, ChangeResult(self._model, number, 0, 0, is_repeated=True)
        version = self._version(number)
        if version in self._behind:
            raise NotReady(
                f"version {number} of model {self._model!r} misses earlier changes until shards "
                f"respond: {self._behind[version]}; no change was made"
            )
        change = checked_change(version, request, self._settings, time.time())
        ids = change.ids
        is_outdated = self._outdated(change)
        is_unknown = np.zeros(ids.size, bool)
        if request.kind != "rows" and request.action != "upsert":
            store = version.store(request.kind, change.head.target)
            assert store is not None  # noqa: S101 - it was checked
            is_unknown = store.store.positions(ids) < 0
        is_unknown &= ~is_outdated
        kept = ~(is_outdated | is_unknown)
        result = ChangeResult(
            self._model,
            number,
            0,
            int(np.count_nonzero(kept)),
            tuple(ids[is_outdated].tolist()[:_LISTED_MAX]),
            tuple(ids[is_unknown].tolist()[:_LISTED_MAX]),
            int(np.count_nonzero(is_outdated)),
            int(np.count_nonzero(is_unknown)),
        )
        if not kept.all():
            change = change.only(kept)
        if not change.size and not request.stream:
            return None, result
        if len(encode(change)) > RECORD_BYTES_MAX:
            raise TooLarge(
                f"the change would take more than {RECORD_BYTES_MAX} bytes of the log; send fewer "
                "ids at a time"
            )
        return change, result

    def _outdated(self, change: Change) -> NDArray[np.bool_]:
        """Returns of which ids a state with the same sequence, or a later one, was applied."""
        sequences = change.numbers(SEQUENCE)
        known = self._sequences.get((change.head.kind, change.head.target))
        if sequences is None or not known:
            return np.zeros(change.size, bool)
        pairs = zip(change.ids.tolist(), sequences.tolist(), strict=True)
        return np.array([known.get(key, sequence - 1) >= sequence for key, sequence in pairs], bool)

    def _note(self, change: Change) -> None:
        """Remembers the sequences and the offset of a change."""
        head = change.head
        sequences = change.numbers(SEQUENCE)
        if sequences is not None:
            known = self._sequences.setdefault((head.kind, head.target), {})
            known.update(zip(change.ids.tolist(), sequences.tolist(), strict=True))
        if head.stream:
            self.streams[head.stream] = max(head.offset, self.streams.get(head.stream, 0))

    def _apply_records(self, records: Sequence[Record]) -> None:
        for record in records:
            change = decode(record.payload)
            self._note(change)
            for version in self._versions:
                self._apply(version, record.sequence, change)

    def _apply(self, version: ChangedVersion, sequence: int, change: Change) -> None:
        """Applies a change to a version, unless that misses earlier ones, or will miss this one."""
        if version in self._behind or sequence <= version.sequence:
            return
        try:
            version.apply(sequence, change)
        except ShardsFailed as problem:
            self._fall_behind(version, problem)

    def _fall_behind(self, version: ChangedVersion, problem: ShardsFailed) -> None:
        self._behind[version] = str(problem)
        self._retry_at = time.monotonic() + _RETRY_S

    def _catch_up(self) -> None:
        """Applies to the versions that are behind what they miss."""
        for version in list(self._behind):
            try:
                self._replay(version)
                version.publish()
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
                continue
            del self._behind[version]

    def _problem_of(self, number: int) -> str:
        """Returns why a version misses changes of the log; "": it does not."""
        for version, problem in self._behind.items():
            if version.loaded.version == number:
                return problem
        return ""

    def _replay(self, version: ChangedVersion) -> None:
        """Applies to a version what was read of the log so far, as far as it misses it.

        Raises:
          ShardsFailed: A shard does not respond; the rest is missing still.
        """
        last = self._log.sequence
        if not last:
            return
        records = ChangeLog(self._log.path, self._model).read()
        self._apply_to(version, [record for record in records if record.sequence <= last])

    def _apply_to(self, version: ChangedVersion, records: Sequence[Record]) -> None:
        """Applies to a version all that the log held when it was loaded, but for what its bundle
        contains, and what it has.

        Raises:
          ShardsFailed: A shard does not respond; the rest is missing still.
        """
        changes = [(record.sequence, decode(record.payload)) for record in records]
        included = version.loaded.manifest.changes_included or 0
        expiring = _expiring(change for _, change in changes)
        for sequence, change in changes:
            if sequence <= version.sequence:
                continue
            if sequence > included or change.head.kind == "rows":
                version.apply(sequence, change)
                continue
            ids = expiring.get(change.head.target, set())
            kept = change.only(np.array([key in ids for key in change.ids.tolist()], bool))
            version.apply(sequence, kept)

    def _restore(self) -> None:
        """Begins anew with what is in the log, after a change was applied and not written."""
        versions = [ChangedVersion(version.loaded) for version in self._versions]
        self._sequences = {}
        self.streams = {}
        try:
            records = ChangeLog(self._log.path, self._model).read()
        except (BundleError, OSError) as problem:
            self.problem = str(problem)
            return
        records = [record for record in records if record.sequence <= self._log.sequence]
        for record in records:
            self._note(decode(record.payload))
        self._versions = versions
        self._behind = {}
        for version in versions:
            try:
                self._apply_to(version, records)
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
        self._publish()

    def _publish(self) -> None:
        for version in self._versions:
            if version in self._behind:
                continue
            try:
                served = version.publish()
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
                continue
            self._manager.change(version.loaded, served)

    def _version(self, number: int) -> ChangedVersion:
        for version in self._versions:
            if version.loaded.version == number:
                return version
        raise NotReady(f"version {number} of model {self._model!r} is not served any more")


def _expiring(changes: Iterable[Change]) -> dict[str, set[Key]]:
    """Returns the ids of candidates that have, or had, an expiry, by corpus: no bundle contains
    them.
    """
    by_corpus: dict[str, list[Change]] = {}
    for change in changes:
        if change.head.kind == "candidates":
            by_corpus.setdefault(change.head.target, []).append(change)
    return {corpus: expiring_ids(parts) for corpus, parts in by_corpus.items()}


def _rejection(problem: Exception) -> Exception:
    """Returns what the sender of a change is told that does not fit the version."""
    if isinstance(problem, ShardsFailed):
        return NotReady(f"{problem}; no change was made")
    if isinstance(problem, NotFinite):
        return InvalidArgument(f"{problem} is not finite with the features that were sent")
    if isinstance(problem, BundleError):
        return InvalidArgument(str(problem))
    return problem


def _error_of(problem: Exception) -> Exception:
    """Returns what senders are told of a log that cannot be read or written."""
    if isinstance(problem, LogUnwritable):
        return NotReady(str(problem))
    if isinstance(problem, BundleError):
        return DataLoss(str(problem))
    return problem
