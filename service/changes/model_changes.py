"""The changes of one model in one process: its log, and the loaded versions that follow it.

A change is checked against the version that it is for, appended to the log, and then served by
every loaded version. The other processes of the service read it from the log. Requests that come
while the log is written are written together.

On a router, to apply a change may need shards. A version that misses some since shards did not
respond is behind: it serves its last state, takes no further change, and tries again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.changes.log import RECORD_BYTES_MAX, ChangeLog, LogTail, LogWriter, Record
from bundle.changes.records import (
    Absorption,
    Change,
    SegmentName,
    absorption_change,
    decode_head,
    decode_runs,
    encode,
)
from bundle.changes.segments import TEMPORARY, read_part
from bundle.errors import BundleError, LogUnwritable
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.row_file import RowFile
from service.changes.changed_version import ChangedVersion, ShardsFailed
from service.changes.checks import checked_change
from service.changes.log_summary import LogSummary
from service.changes.replay import replay
from service.changes.requests import AppliedChanges, ChangeRequest, ChangeResult
from service.changes.row_files import RowFiles, is_due
from service.changes.segments import UNUSABLE, SegmentDirectory
from service.changes.store_changes import AbsorbedParts, ChangedCorpus
from service.config import ServiceSettings
from service.engine.limits import NotFinite
from service.errors import DataLoss, InvalidArgument, NotReady, ServiceError, TooLarge
from service.versions.lifecycle import VersionManager
from service.versions.loader import ShardsMissing
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

SEGMENTS_NAME = "changes.segments"
"""The directory of segments, beside the log."""
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


class PlannedAbsorption(NamedTuple):
    """Changed candidates that are to be absorbed into a segment.

    Attributes:
      version: The version as it was loaded.
      corpus: The name of the corpus.
      sequence: Of the last change that the segment contains.
      base: The corpus as the bundle has it.
      indexes: Those over it.
      kept_segments: The segments before, which stay.
      parts: The candidates.
    """

    version: ModelVersion
    corpus: str
    sequence: int
    base: LoadedStore
    indexes: Mapping[str, ServedIndex]
    kept_segments: tuple[SegmentName, ...]
    parts: AbsorbedParts


class ModelChanges:
    """The changes of one model. Safe for any number of threads.

    Attributes:
      problem: Why the log cannot be followed; "": it can.
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
        self._summary = LogSummary()
        self._model = model
        self._settings = settings
        self._manager = manager
        self._log = ChangeLog(path, model)
        self._row_files = RowFiles(path)
        self._tail = LogTail(path)
        self._versions: list[ChangedVersion] = []
        self._segments = SegmentDirectory(path.with_name(SEGMENTS_NAME))
        self._behind: dict[ChangedVersion, str] = {}
        """Versions that miss changes of the log, and why."""
        self._retry_at = 0.0
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
            self._read()
            version = ChangedVersion(loaded, self._segments)
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
            self._forget_segments()

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
            self._read()

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

    def is_due(self, slots_max: int) -> bool:
        """Returns whether there is something to absorb; as of `planned`."""
        with self._lock:
            return any(
                _kept_count(store, slots_max) is not None
                for version in self._absorbable_versions
                for store in version.corpora.values()
            )

    def planned(self, slots_max: int) -> PlannedAbsorption | None:
        """Returns what is to be absorbed next; None: nothing is due.

        Args:
          slots_max: Positions of changed candidates of a corpus, ended ones included, that are
            searched exactly.

        Raises:
          LogDamaged, FormatError, OSError: The log cannot be read.
        """
        with self._lock:
            self.follow()
            for version in self._absorbable_versions:
                version.publish()
                for corpus, store in version.corpora.items():
                    kept_count = _kept_count(store, slots_max)
                    if kept_count is None:
                        continue
                    return PlannedAbsorption(
                        version.loaded,
                        corpus,
                        version.sequence,
                        store.base,
                        store.indexes,
                        tuple(segment.name for segment in store.segments[:kept_count]),
                        store.parts(kept_count),
                    )
        return None

    @property
    def _absorbable_versions(self) -> list[ChangedVersion]:
        """The versions that miss no change of the log."""
        return [version for version in self._versions if version not in self._behind]

    def absorb(self, planned: PlannedAbsorption, segment: SegmentName) -> bool:
        """Has every process use a segment from now on, by a record in the log.

        Args:
          planned: What the segment holds.
          segment: The segment, which is complete.

        Returns:
          Whether the version is still served; if not, nothing was written.

        Raises:
          BundleError, OSError: The segment cannot be used, or the log cannot be written.
        """
        loaded = planned.version
        # Before the log is locked: opening it takes longer than all that follows.
        self._segments.load(segment, planned.base, planned.indexes)
        absorption = Absorption(
            fingerprint=loaded.fingerprint,
            sequence=planned.sequence,
            segments=(*planned.kept_segments, segment),
        )
        change = absorption_change(planned.corpus, loaded.version, time.time(), absorption)
        with self._lock:
            if all(version.loaded is not loaded for version in self._versions):
                return False
            with self._log.writing() as writer:
                self._apply_records(writer.read())
                (sequence,) = writer.append([encode(change)])
            self._summary.add(change)
            for version in self._versions:
                self._apply(version, sequence, change)
            self._publish()
            self._forget_segments()
        return True

    def preload(self) -> None:
        """Loads segments that another process has completed, before the log names them."""
        for name in self._segments.names():
            if name.startswith(TEMPORARY) or self._segments.is_loaded(name):
                continue
            with self._lock:
                store = self._store_of_new(name)
            if store is not None:
                with suppress(*UNUSABLE):  # whoever needs it reports why
                    self._segments.load(self._segments.name(name), store.base, store.indexes)

    def _store_of_new(self, name: str) -> ChangedCorpus | None:
        """Returns the corpus of which a segment is newer than those that it has; None: there is
        none.
        """
        for version in self._versions:
            for corpus, store in version.corpora.items():
                prefix = segment_prefix(version.loaded, corpus)
                absorption = self._summary.absorptions.get((version.loaded.version, corpus))
                last = 0
                if absorption is not None:
                    last = absorption.sequence
                number = name.removeprefix(prefix).partition("-")[0]
                if name.startswith(prefix) and number.isdecimal() and int(number) > last:
                    return store
        return None

    def sweep(self) -> None:
        """Removes segments that the log names no more, of versions that are gone, and what was
        never finished. Whoever still uses them has them open. Only one process may sweep at a time.

        Raises:
          LogDamaged, FormatError, OSError: The log cannot be read; nothing was removed.
        """
        with self._lock:
            self.follow()  # another process may have named some since
            used = {
                segment.name
                for (version, _), absorption in self._summary.absorptions.items()
                if self._has_version(version)
                for segment in absorption.segments
            }
        for name in self._segments.names():
            if name not in used:
                shutil.rmtree(self._segments.path / name, ignore_errors=True)

    def _has_version(self, version: int) -> bool:
        return (self._settings.root / self._model / str(version)).exists()

    def lacking(self, records: Sequence[Record]) -> list[SegmentName]:
        """Returns the segments that records of another log put into effect and that are not here.

        Those of versions that are not here are left out, and those that a later one of the records
        replaces.
        """
        last: dict[tuple[int, str], Absorption] = {}
        for record in records:
            head = decode_head(record.payload)
            if head.absorption is not None and record.sequence > self._log.sequence:
                last[head.version, head.target] = head.absorption
        return [
            segment
            for (number, corpus), absorption in last.items()
            if self._is_wanted(number, corpus, absorption)
            for segment in absorption.segments
            if not (self._segments.path / segment.name).exists()
        ]

    def _is_wanted(self, number: int, corpus: str, absorption: Absorption) -> bool:
        """Returns whether a version that is here uses segments, or will when it is loaded."""
        with self._lock:
            for version in self._versions:
                if version.loaded.version == number:
                    return version.uses(corpus, number, absorption)
        return self._has_version(number)

    def unusable_segments(self) -> list[SegmentName]:
        """Returns the last segments of the corpora whose segments are not used."""
        with self._lock:
            return [
                segment
                for key in self.unusable
                for segment in self._summary.absorptions[key].segments
            ]

    def begin_anew(self) -> None:
        """Has the versions whose segments were not used begin with them, if they are whole now."""
        with self._lock:
            unusable = [
                (version, corpus) for version in self._versions for corpus in version.unusable
            ]
        is_usable = False
        for version, corpus in unusable:
            with suppress(*UNUSABLE):
                version.load(corpus, self._summary.absorptions[version.loaded.version, corpus])
                is_usable = True
        if is_usable:
            with self._lock:
                self._restore()

    def segment_part(self, name: str, file: str, offset: int, bytes_max: int) -> bytes:
        """Returns a part of a file of a segment; see `read_part`."""
        return read_part(self._segments.path / name, file, offset, bytes_max)

    @property
    def segments_path(self) -> Path:
        """The directory of the segments."""
        return self._segments.path

    @property
    def unusable(self) -> dict[tuple[int, str], str]:
        """Why segments are not used, by version and corpus."""
        with self._lock:
            return {
                (version.loaded.version, corpus): problem
                for version in self._versions
                for corpus, problem in version.unusable.items()
            }

    @property
    def changed_candidates(self) -> tuple[int, int]:
        """How many positions of changed candidates lie in segments, and how many are searched
        exactly, over all versions.
        """
        with self._lock:
            stores = [store for version in self._versions for store in version.corpora.values()]
            in_segments = sum(part.store.size for store in stores for part in store.segments)
            return in_segments, sum(store.slot_count for store in stores)

    def _forget_segments(self) -> None:
        """Forgets the loaded segments that no version uses."""
        used = {
            segment.name.name
            for version in self._versions
            for store in version.corpora.values()
            for segment in store.segments
        }
        self._segments.forget_others(used)

    def applied(self) -> AppliedChanges:
        """Returns what was changed so far, by any process.

        Raises:
          LogDamaged, FormatError: The log cannot be read any further.
          OSError: Likewise.
        """
        with self._lock:
            self.follow()
            return AppliedChanges(self._model, self._log.sequence, dict(self._summary.streams))

    def absorb_rows(self) -> None:
        """Has files hold the changed rows of tables of which many are in memory.

        For one thread at a time. Changes go on meanwhile.

        Raises:
          BundleError: A file is damaged. The rows stay in memory.
          OSError: A file cannot be read or written. Likewise.
        """
        with self._lock:
            versions = list(self._versions)
        for version in versions:
            for table in version.tables():
                self._absorb_rows_of(version, table)

    def _absorb_rows_of(self, version: ChangedVersion, name: str) -> None:
        changed = version.changed_rows(name)
        if not is_due(changed):
            return
        number = version.loaded.version
        table = version.loaded.manifest.tables[name]
        problem: BundleError | None = None
        try:
            file = self._row_files.newer(number, name, table, changed)
            if file is not None and self._read_from(version, name, changed, file):
                return
        except BundleError as error:
            problem = error
        # What is there is damaged, or of another log: it is replaced.
        if self._row_files.write(number, name, table, changed):
            self._row_files.remove_others([served.loaded.version for served in self._versions])
            file = self._row_files.newer(number, name, table, changed)
            if file is not None:
                self._read_from(version, name, changed, file)
        if problem is not None:
            raise problem

    def _read_from(
        self, version: ChangedVersion, table: str, changed: ChangedRows, file: RowFile
    ) -> bool:
        """Reads changed rows from a file; returns whether they are not in memory any more."""
        if not changed.contains(file.rows).all():
            return False
        exchange = changed.exchange(file)
        with self._lock:
            if version not in self._versions or not version.exchange_file(table, exchange):
                return False
            self._publish()
            return not is_due(version.changed_rows(table))

    def status(self) -> dict[str, Any]:
        """Returns what operators are shown."""
        with self._lock:
            return {
                "log": str(self._log.path),
                "sequence": self._log.sequence,
                "problem": self.problem or self.behind,
                "streams": dict(self._summary.streams),
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
                    sequence = self._log.sequence + len(applied) + 1
                    applied += self._applied(submission, sequence)
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

    def _applied(self, submission: _Submission, sequence: int) -> list[_Applied]:
        """Checks and applies a request, which will have a sequence in the log; sets its result if
        it fails, or changes nothing.
        """
        try:
            change, result = self._checked(submission)
            if change is None:
                submission.result.set_result(result)
                return []
            self._version(submission.version).change(change, sequence)
        except (ServiceError, BundleError, NotFinite, ShardsFailed) as problem:
            submission.result.set_exception(_rejection(problem))
            return []
        self._summary.add(change)
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
        if self._summary.is_repeated(request):
            applied_offset = self._summary.streams[request.stream]
            return None, ChangeResult(
                self._model, number, 0, 0, is_repeated=True, stream_offset=applied_offset
            )
        version = self._version(number)
        if version in self._behind:
            raise NotReady(
                f"version {number} of model {self._model!r} misses earlier changes until shards "
                f"respond: {self._behind[version]}; no change was made"
            )
        change = checked_change(version, request, self._settings, time.time())
        ids = change.ids
        is_outdated = self._summary.outdated(change)
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
            stream_offset=request.offset,
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

    def _read(self) -> None:
        """Applies what other processes have appended since the log was read, and serves it."""
        for records in self._log.parts():
            self._apply_records(records)
        self._publish()

    def _apply_records(self, records: Sequence[Record]) -> None:
        """Applies what was read from the log."""
        runs = decode_runs(records)
        for run in runs:
            self._summary.add_run(run)
            if self._versions:
                for sequence, change in run.changes:
                    for version in self._versions:
                        self._apply(version, sequence, change)
        if any(run.head.absorption is not None for run in runs):
            self._forget_segments()

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
        """Applies to a version what it lacks of the records that were read of the log so far.

        Raises:
          ShardsFailed: A shard does not respond; the version lacks the rest still.
        """
        replay(version, self._parts_again(), self._summary)

    def _parts_again(self) -> Iterator[list[Record]]:
        """Yields the records that were read of the log so far, in parts."""
        last = self._log.sequence
        for records in ChangeLog(self._log.path, self._model).parts():
            part = [record for record in records if record.sequence <= last]
            if part:
                yield part

    def _restore(self) -> None:
        """Begins anew with what is in the log, after a change was applied and not written."""
        versions = [ChangedVersion(version.loaded, self._segments) for version in self._versions]
        summary = LogSummary()
        try:
            for records in self._parts_again():
                for run in decode_runs(records):
                    summary.add_run(run)
        except (BundleError, OSError) as problem:
            self.problem = str(problem)
            return
        self._summary = summary
        self._versions = versions
        self._behind = {}
        for version in versions:
            try:
                self._replay(version)
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
        self._publish()

    def _publish(self) -> None:
        if any(version.is_lost for version in self._versions):
            self._restore()
            return
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


def segment_prefix(loaded: ModelVersion, corpus: str) -> str:
    """Returns how the names of the segments of a corpus begin, before the sequence."""
    return f"{loaded.version}-{loaded.fingerprint:08x}-{corpus}-"


def _kept_count(store: ChangedCorpus, slots_max: int) -> int | None:
    """Returns how many segments stay if the candidates behind them are absorbed now; None: nothing
    is to be absorbed.

    Each segment that stays has at least twice as many candidates as all behind it, so that there
    are few, and a candidate is written again only as often as they double.
    """
    counts = store.segment_counts
    is_worn = [2 * live_count < size for size, live_count in counts]
    worn_count = sum(
        size - live_count for (size, live_count), worn in zip(counts, is_worn, strict=True) if worn
    )
    if max(store.slot_count, worn_count) < slots_max:
        return None
    behind = store.added_count - sum(live_count for _, live_count in counts)
    kept_count = len(counts)
    while kept_count and counts[kept_count - 1][1] < 2 * behind:
        kept_count -= 1
        behind += counts[kept_count][1]
    if any(is_worn):
        kept_count = min(kept_count, is_worn.index(True))
    return kept_count


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
