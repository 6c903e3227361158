"""The requests that change a model: checked, written together, applied, and acknowledged."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.changes.log import LogWriter
from bundle.changes.records import Change, encode
from bundle.errors import BundleError, FeatureError, LogLocked, LogUnwritable, UnknownCandidate
from bundle.storage.frames import RECORD_BYTES_MAX, Record
from service.changes.applied_log import AppliedLog
from service.changes.changed_version import REJECTIONS, ChangeDropped
from service.changes.checks import checked_change
from service.changes.embedding import ShardsFailed
from service.config import ServiceSettings
from service.contract.changes import ChangeRequest, ChangeResult
from service.engine.validation import NotFinite
from service.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    InvalidArgument,
    NotReady,
    TooLarge,
    without_host,
)
from service.observability.logging import fields, logger
from service.versions.lifecycle import VersionManager

log = logger(__name__)

_LISTED_MAX = 100
"""Maximum number of ids of each kind that a result lists."""


class _Submission(NamedTuple):
    """A request that waits to be written.

    Attributes:
      request: The request.
      version: The number of the version that it is checked against.
      deadline: The monotonic time until which its sender waits.
      result: The result, for which its sender waits. The sender cancels it to withdraw the request,
        which is possible until it is being written.
    """

    request: ChangeRequest
    version: int
    deadline: float
    result: Future[ChangeResult]


class _Applied(NamedTuple):
    """A change that was appended to the log, and applied to all versions.

    Attributes:
      record: Its record, which is not on the disk yet.
      result: The result of its submission, but for the sequence.
      submission: The submission that it comes from.
    """

    record: Record
    result: ChangeResult
    submission: _Submission


class Submissions:
    """Takes requests that change a model. Safe for any number of threads.

    While requests wait, a thread writes them: all that have come meanwhile, with one write to the
    disk (group commit). Their senders wait until their deadlines, whatever the disk does.
    """

    def __init__(self, log: AppliedLog, settings: ServiceSettings, manager: VersionManager) -> None:
        """Begins without requests.

        Args:
          log: Holds the changes.
          settings: The limits.
          manager: Serves the versions.
        """
        self._log = log
        self._settings = settings
        self._manager = manager
        self._waiting: list[_Submission] = []
        self._is_writing = False
        """Whether the thread that writes runs."""
        self._waiting_lock = threading.Lock()
        """The lock of the two attributes above, which is never held for long."""

    def submit(
        self,
        request: ChangeRequest,
        version: int,
        deadline: float,
        withdrawal: Future[None] | None = None,
    ) -> ChangeResult:
        """Makes a change: when this returns, it is on the disk, and served by this process.

        Args:
          request: What to change.
          version: The version that it is checked against, which must be loaded.
          deadline: The monotonic time until which the change is waited for.
          withdrawal: Ends the wait when it is set; None: nothing does.

        Raises:
          Cancelled: The client has withdrawn the change, which is never made.
          DeadlineExceeded: The change was withdrawn, and is never made; or it was being written,
            and the response to a repeated request says whether it was made.
          ServiceError: The request does not fit the version, or the log cannot be written; nothing
            was changed.
        """
        submission = _Submission(request, version, deadline, Future())
        with self._waiting_lock:
            self._waiting.append(submission)
            self._begin_to_write()
        timeout_s = None
        if deadline < math.inf:
            timeout_s = max(0.0, deadline - time.monotonic())
        ends: list[Future[Any]] = [submission.result]
        if withdrawal is not None:
            ends.append(withdrawal)
        wait(ends, timeout_s, FIRST_COMPLETED)
        if submission.result.cancel():
            if withdrawal is not None and withdrawal.done():
                raise Cancelled("the client has disconnected; the change was not made")
            raise DeadlineExceeded(
                "the deadline of the request has passed while earlier changes were being written; "
                "the change was not made, and will not be"
            )
        if not submission.result.done():
            raise DeadlineExceeded(
                "the deadline of the request has passed while the change was being written to the "
                "disk; it may have been made, and it is safe to send it again"
            )
        return submission.result.result()

    def _begin_to_write(self) -> None:
        """Starts the thread that writes, unless it runs."""
        if self._is_writing:
            return
        thread = threading.Thread(
            target=self._write_waiting, name="rowcast-write-changes", daemon=True
        )
        thread.start()
        self._is_writing = True

    def _write_waiting(self) -> None:
        """Writes until nothing waits."""
        while True:
            now = time.monotonic()
            with self._waiting_lock:
                for submission in self._waiting:
                    # Its sender withdraws it at this moment, too.
                    if submission.deadline <= now:
                        submission.result.cancel()
                self._waiting = [
                    submission for submission in self._waiting if not submission.result.cancelled()
                ]
                if not self._waiting:
                    self._is_writing = False
                    return
                deadline = max(submission.deadline for submission in self._waiting)
            self._write(deadline)

    def _write(self, deadline: float) -> None:
        """Applies requests and appends them to the log, all at once; sets their results.

        Args:
          deadline: The monotonic time until which the state of the log is waited for.
        """
        submissions: list[_Submission] = []
        try:
            with self._log.writing(deadline) as writer, ExitStack() as leases:
                # Only now: while the state was waited for, each could be withdrawn.
                submissions = self._take()
                # Applied before they are on the disk: each is checked against a state that has
                # those before it, and one that fails is not in the log at all.
                applied: list[_Applied] = []
                try:
                    for submission in submissions:
                        change = self._apply(submission, writer, leases)
                        if change is not None:
                            applied.append(change)
                    writer.commit()
                except Exception as problem:
                    # Applied and not written: the state must be that of the log again.
                    writer.roll_back()
                    self._log.distrust(str(problem))
                    self._log.publish()
                    raise
                self._serve(applied)
        except Exception as problem:  # noqa: BLE001 - each sender gets it
            # The deadline of all that waited has passed.
            if isinstance(problem, LogLocked) and not submissions:
                return
            error = rejection_of_log(problem)
            for submission in submissions or self._take():
                if not submission.result.done():
                    submission.result.set_exception(error)

    def _take(self) -> list[_Submission]:
        """Returns the requests that are to be written now, which cannot be withdrawn any more."""
        with self._waiting_lock:
            waiting = self._waiting
            self._waiting = []
        return [
            submission for submission in waiting if submission.result.set_running_or_notify_cancel()
        ]

    def _apply(
        self, submission: _Submission, writer: LogWriter, leases: ExitStack
    ) -> _Applied | None:
        """Checks, appends and applies a request; sets its result if it fails, or changes nothing.
        Whatever is wrong with one request, the others are written.

        Args:
          submission: The request.
          writer: Appends to the log.
          leases: Keeps the version from being closed while the changes are written.

        Raises:
          LogUnwritable: The disk is full or broken.
        """
        record = None
        try:
            leases.enter_context(self._manager.acquire(self._log.model, submission.version))
            change, payload, result = self._check(submission)
            if change is None:
                submission.result.set_result(result)
                return None
            self._check_size(writer.end_behind(payload))
            record = writer.append(payload)
            version = self._log.version(submission.version)
            version.change(change)
            version.set_sequence(record.sequence)
            # Every version takes changes in the order of the log, whichever they are for.
            self._log.apply(record.sequence, change)
        except LogUnwritable:
            raise
        except Exception as problem:  # noqa: BLE001 - its sender gets it
            if record is not None:
                writer.withdraw(record)
            if isinstance(problem, (*REJECTIONS, ShardsFailed)):
                problem = _rejection(problem)
            elif record is not None:
                self._log.distrust("a change failed while it was applied")
            submission.result.set_exception(problem)
            return None
        self._log.summary.add(change)
        return _Applied(record, result, submission)

    def _check_size(self, size: int) -> None:
        """Checks that the log may have a size, in bytes.

        Raises:
          TooLarge: It may not.
        """
        limit = self._settings.max_log_bytes
        if size > limit:
            message = (
                f"the change log of model {self._log.model!r} would have {size} bytes; at most "
                f"{limit} are accepted (max_log_bytes): compact it (rowcast-serve ctl changes "
                f"compact {self._log.model}), or raise the limit"
            )
            raise TooLarge(message)

    def _serve(self, applied: Sequence[_Applied]) -> None:
        """Serves changes that are in the log; sets their results."""
        try:
            self._log.publish()
        except Exception:
            log.exception("changes_failed", extra=fields(model=self._log.model))
            self._log.distrust("changes of the log could not be applied")

        # Acknowledged only now: on the disk, and served by this process.
        for record, result, submission in applied:
            sequence = record.sequence
            problem = self._log.problem_of(submission.version)
            if problem:
                error = NotReady(
                    f"the change is in the log, as sequence {sequence}, and is not served yet: "
                    f"{problem}"
                )
                submission.result.set_exception(error)
                continue
            submission.result.set_result(replace(result, sequence=sequence))

    def _check(self, submission: _Submission) -> tuple[Change | None, bytes, ChangeResult]:
        """Returns the change of a request, None if it changes nothing; the change as the log stores
        it; and its result.
        """
        request = submission.request
        number = submission.version
        summary = self._log.summary
        repeated_offset = summary.repeated_offset(request, number)
        if repeated_offset is not None:
            repeated = ChangeResult(
                self._log.model, number, 0, 0, is_repeated=True, stream_offset=repeated_offset
            )
            return None, b"", repeated
        offsets = summary.offsets
        streams_max = self._settings.max_streams
        if request.stream and request.stream not in offsets and len(offsets) >= streams_max:
            raise TooLarge.of_limit(
                "stream",
                f"a new name beside {len(offsets)} of model {self._log.model!r}",
                streams_max,
                "max_streams",
                "is",
            )
        version = self._log.version(number)
        problem = self._log.problem_of(number)
        if problem:
            raise NotReady(
                f"version {number} of model {self._log.model!r} misses earlier changes until "
                f"shards respond: {problem}; no change was made"
            )
        change = checked_change(version, request, self._settings, time.time())

        # Ids whose later state is applied already are left out. Others are written although no
        # loaded version has them: a later one may, and their numbers count.
        is_outdated = summary.outdated(change)
        is_unknown = self._is_unknown(request, change) & ~is_outdated
        ids = change.ids
        result = ChangeResult(
            model=self._log.model,
            version=number,
            sequence=0,
            changed=int(np.count_nonzero(~(is_outdated | is_unknown))),
            outdated=tuple(ids[is_outdated].tolist()[:_LISTED_MAX]),
            unknown=tuple(ids[is_unknown].tolist()[:_LISTED_MAX]),
            outdated_count=int(np.count_nonzero(is_outdated)),
            unknown_count=int(np.count_nonzero(is_unknown)),
            stream_offset=request.offset,
        )
        if is_outdated.any():
            change = change.only(~is_outdated)
        # An empty change of a stream is written, too, since it has the offset.
        if not change.size and not request.stream:
            return None, b"", result
        change = summary.with_later_attributes(change)
        payload = encode(change)
        if len(payload) > RECORD_BYTES_MAX:
            size = f"more than {RECORD_BYTES_MAX} bytes for the log"
            raise TooLarge.of_limit("request", size, RECORD_BYTES_MAX, "send fewer ids at a time")
        return change, payload, result

    def _is_unknown(self, request: ChangeRequest, change: Change) -> NDArray[np.bool_]:
        """Returns which ids are to be deleted, or to get attributes, and are in no loaded version,
        [m].
        """
        is_unknown = np.zeros(change.size, bool)
        if request.action == "upsert":
            return is_unknown
        is_unknown[:] = True
        for version in self._log.versions:
            store = version.store(request.kind, change.head.target)
            # The ids of another version may be of another kind.
            if store is not None:
                with suppress(UnknownCandidate):
                    is_unknown &= store.store.positions(change.ids) < 0
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
    if isinstance(problem, BundleError | ChangeDropped):
        return InvalidArgument(without_host(str(problem)))
    return problem


def rejection_of_log(problem: Exception) -> Exception:
    """Returns the error for senders if the log cannot be read or written."""
    if isinstance(problem, LogUnwritable | OSError):
        return NotReady(str(problem))
    if isinstance(problem, BundleError):
        return DataLoss(str(problem))
    return problem
