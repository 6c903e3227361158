"""The requests that change a model: checked, written together, applied, and acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.changes.log import RECORD_BYTES_MAX, LogWriter
from bundle.changes.records import Change, encode
from bundle.errors import BundleError, FeatureError, LogUnwritable, UnknownCandidate
from service.changes.applied_log import AppliedLog
from service.changes.changed_version import ChangedVersion
from service.changes.checks import checked_change
from service.changes.embedding import ShardsFailed
from service.changes.requests import ChangeRequest, ChangeResult
from service.config import ServiceSettings
from service.engine.validation import NotFinite
from service.errors import DataLoss, InvalidArgument, NotReady, ServiceError, TooLarge

_LISTED_MAX = 100
"""Maximum number of ids of each kind that a result lists."""


class _Submission(NamedTuple):
    """A request that waits to be written.

    Attributes:
      request: The request.
      version: The number of the version that it is checked against.
      result: The result, for which its sender waits.
    """

    request: ChangeRequest
    version: int
    result: Future[ChangeResult]


class _Applied(NamedTuple):
    """A change that was applied to the version that it is for, but is not in the log yet.

    Attributes:
      change: The change.
      result: The result of its submission, but for the sequence.
      submission: The submission that it comes from.
    """

    change: Change
    result: ChangeResult
    submission: _Submission


class Submissions:
    """Takes requests that change a model. Safe for any number of threads.

    A thread that submits waits for the lock of the log. Whichever gets it writes all requests that
    have come by then, with one write to the disk.
    """

    def __init__(self, log: AppliedLog, settings: ServiceSettings) -> None:
        """Begins without requests.

        Args:
          log: Holds the changes.
          settings: The limits.
        """
        self._log = log
        self._settings = settings
        self._waiting: list[_Submission] = []
        self._waiting_lock = threading.Lock()

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
        with self._waiting_lock:
            self._waiting.append(submission)
        # A thread that waits here often finds that another one has written its request: one write
        # to the disk is enough for all that have come by then.
        with self._log.lock:
            if not submission.result.done():
                with self._waiting_lock:
                    submissions = self._waiting
                    self._waiting = []
                self._write(submissions)
        return submission.result.result()

    def expire(self, now_s: float) -> None:
        """Deletes the candidates that have expired.

        Args:
          now_s: The time, in Unix seconds.

        Raises:
          ServiceError: The log cannot be written.
        """
        with self._log.lock:
            # Listed first: a deletion changes the versions.
            expired: list[tuple[int, str, list[int | str]]] = []
            for version in self._log.versions:
                for corpus, ids in version.expired(now_s).items():
                    expired.append((version.loaded.version, corpus, ids))
            for number, corpus, ids in expired:
                keys: NDArray[Any] = np.array(ids, object)
                if not isinstance(ids[0], str):
                    keys = np.array(ids, np.int64)
                self.submit(ChangeRequest("candidates", "delete", keys, corpus), number)

    def _write(self, submissions: Sequence[_Submission]) -> None:
        """Applies requests and appends them to the log, all at once; sets their results."""
        applied: list[_Applied] = []
        try:
            with self._log.writing() as writer:
                # Applied before they are written: each is checked against a state that has those
                # before it, and one that fails is not in the log at all.
                for submission in submissions:
                    sequence = self._log.sequence + len(applied) + 1
                    applied += self._apply(submission, sequence)
                self._append(writer, applied)
        except Exception as problem:  # noqa: BLE001 - each sender gets it
            # Some were applied and not written: the state must be that of the log again.
            if applied:
                self._log.restore()
            error = _error_of(problem)
            for submission in submissions:
                if not submission.result.done():
                    submission.result.set_exception(error)
            return

        # Acknowledged only now: on the disk, and served by this process.
        self._log.publish()
        for _, result, submission in applied:
            problem_of_version = self._log.problem_of(submission.version)
            if problem_of_version:
                submission.result.set_exception(
                    NotReady(
                        f"the change is in the log, as sequence {result.sequence}, and is not "
                        f"served before shards respond: {problem_of_version}"
                    )
                )
                continue
            submission.result.set_result(result)

    def _apply(self, submission: _Submission, sequence: int) -> list[_Applied]:
        """Checks and applies a request, which will have a sequence in the log; sets its result if
        it fails, or changes nothing.
        """
        try:
            change, result = self._check(submission)
            if change is None:
                submission.result.set_result(result)
                return []
            self._log.version(submission.version).change(change, sequence)
        except (ServiceError, BundleError, NotFinite, ShardsFailed) as problem:
            submission.result.set_exception(_rejection(problem))
            return []
        self._log.summary.add(change)
        return [_Applied(change, result, submission)]

    def _append(self, writer: LogWriter, applied: list[_Applied]) -> None:
        """Appends changes to the log, and applies them to the versions that they are not for."""
        payloads = [encode(change) for change, _, _ in applied]
        if not payloads:
            return
        sequences = writer.append(payloads)
        for position, (sequence, (change, result, submission)) in enumerate(
            zip(sequences, applied, strict=True)
        ):
            applied[position] = _Applied(change, replace(result, sequence=sequence), submission)
            self._log.version(submission.version).set_sequence(sequence)
            self._log.apply(sequence, change)

    def _check(self, submission: _Submission) -> tuple[Change | None, ChangeResult]:
        """Returns the change of a request, None if it changes nothing, and its result."""
        request = submission.request
        number = submission.version
        summary = self._log.summary
        if summary.is_repeated(request):
            applied_offset = summary.streams[request.stream]
            return None, ChangeResult(
                self._log.model, number, 0, 0, is_repeated=True, stream_offset=applied_offset
            )
        version = self._log.version(number)
        problem = self._log.problem_of(number)
        if problem:
            raise NotReady(
                f"version {number} of model {self._log.model!r} misses earlier changes until "
                f"shards respond: {problem}; no change was made"
            )
        change = checked_change(version, request, self._settings, time.time())

        # Ids whose later state is applied already, or that do not exist, are left out.
        is_outdated = summary.outdated(change)
        is_unknown = _is_unknown(version, request, change) & ~is_outdated
        is_applicable = ~(is_outdated | is_unknown)
        result = ChangeResult(
            model=self._log.model,
            version=number,
            sequence=0,
            changed=int(np.count_nonzero(is_applicable)),
            outdated=tuple(change.ids[is_outdated].tolist()[:_LISTED_MAX]),
            unknown=tuple(change.ids[is_unknown].tolist()[:_LISTED_MAX]),
            outdated_count=int(np.count_nonzero(is_outdated)),
            unknown_count=int(np.count_nonzero(is_unknown)),
            stream_offset=request.offset,
        )
        if not is_applicable.all():
            change = change.only(is_applicable)
        # An empty change of a stream is written, too, since it has the offset.
        if not change.size and not request.stream:
            return None, result
        if len(encode(change)) > RECORD_BYTES_MAX:
            size = f"more than {RECORD_BYTES_MAX} bytes for the log"
            raise TooLarge.of_limit("request", size, RECORD_BYTES_MAX, "send fewer ids at a time")
        return change, result


def _is_unknown(
    version: ChangedVersion, request: ChangeRequest, change: Change
) -> NDArray[np.bool_]:
    """Returns which ids are to be deleted, or to get attributes, and are not there, [m]."""
    if request.kind == "rows" or request.action == "upsert":
        return np.zeros(change.size, bool)
    store = version.store(request.kind, change.head.target)
    assert store is not None  # noqa: S101 - it was checked
    is_unknown: NDArray[np.bool_] = store.store.positions(change.ids) < 0
    return is_unknown


def _rejection(problem: Exception) -> Exception:
    """Returns the error for the sender of a change that does not fit the version."""
    if isinstance(problem, ShardsFailed):
        return NotReady(f"{problem}; no change was made")
    if isinstance(problem, NotFinite):
        value = f"values with which {problem} is not finite"
        return InvalidArgument.of_field("features", value, "smaller numbers", "has")
    if isinstance(problem, FeatureError):
        return InvalidArgument.of_misfit(f"features.{problem.feature}", problem)
    if isinstance(problem, UnknownCandidate):
        return InvalidArgument.of_misfit(problem.field, problem)
    if isinstance(problem, BundleError):
        return InvalidArgument(str(problem))
    return problem


def _error_of(problem: Exception) -> Exception:
    """Returns the error for senders if the log cannot be read or written."""
    if isinstance(problem, LogUnwritable):
        return NotReady(str(problem))
    if isinstance(problem, BundleError):
        return DataLoss(str(problem))
    return problem
