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

from bundle.changes.file import StateWriter
from bundle.changes.states import State
from bundle.errors import (
    BundleError,
    ChangesDamaged,
    ChangesLocked,
    ChangesReplaced,
    ChangesUnavailable,
    FeatureError,
    UnknownCandidate,
)
from service.changes.applied_file import AppliedFile
from service.changes.checks import CheckedChange, checked_change
from service.changes.embedding import ShardsFailed
from service.changes.numbers import counting_states
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
from service.observability.logging import logger
from service.versions.lifecycle import VersionManager

log = logger(__name__)

_LISTED_MAX = 100
"""Maximum number of ids of each kind that a result lists."""
_GROUP_IDS = 10_000
"""The number of ids that are written together, unless one request has more. With less, small
changes wait for more writes to the disk; with more, all wait for longer behind large ones.
"""
_FILE_PROBLEMS = (ChangesDamaged, ChangesReplaced, ChangesUnavailable)
"""Errors that no request is the cause of."""


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


class _Written(NamedTuple):
    """A change that was written, and applied to all versions, but is not on the disk yet.

    Attributes:
      result: The result of its submission.
      submission: The submission that it comes from.
    """

    result: ChangeResult
    submission: _Submission


class Submissions:
    """Takes requests that change a model. Safe for any number of threads.

    While requests wait, a thread writes them: all that have come meanwhile, with one write to the
    disk (group commit). Their senders wait until their deadlines, whatever the disk does.
    """

    def __init__(
        self, applied: AppliedFile, settings: ServiceSettings, manager: VersionManager
    ) -> None:
        """Begins without requests.

        Args:
          applied: Holds the changes.
          settings: The limits.
          manager: Serves the versions.
        """
        self._applied = applied
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
          ServiceError: The request does not fit the version, or cannot be written; nothing
            was changed.
        """
        submission = _Submission(request, version, deadline, Future())
        with self._waiting_lock:
            self._waiting.append(submission)
            if not self._is_writing:
                threading.Thread(
                    target=self._write_waiting, name="rowcast-write-changes", daemon=True
                ).start()
                self._is_writing = True
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
        """Writes and applies requests, all at once; sets their results.

        Args:
          deadline: The monotonic time until which the state of the changes is waited for.
        """
        submissions: list[_Submission] = []
        try:
            with ExitStack() as leases:
                written: list[_Written] = []
                with self._applied.writing(deadline) as writer:
                    # Only now: while the state was waited for, each could be withdrawn.
                    submissions = self._take()
                    # Applied before they are on the disk: each is checked against a state that has
                    # those before it, and one that fails is not in the file at all.
                    for submission in submissions:
                        change = self._attempt(submission, writer, leases)
                        if change is not None:
                            written.append(change)
                self._acknowledge(written)
        except Exception as problem:  # noqa: BLE001 - each sender gets it
            # The deadline of all that waited has passed.
            if isinstance(problem, ChangesLocked) and not submissions:
                return
            error = rejection_of_file(problem)
            for submission in submissions or self._take():
                if not submission.result.done():
                    submission.result.set_exception(error)

    def _take(self) -> list[_Submission]:
        """Returns the requests that are to be written now, which cannot be withdrawn any more: all
        that wait, or the first ones if they are large.
        """
        taken: list[_Submission] = []
        size = 0
        with self._waiting_lock:
            while self._waiting and size < _GROUP_IDS:
                submission = self._waiting.pop(0)
                if submission.result.set_running_or_notify_cancel():
                    taken.append(submission)
                    size += len(submission.request.ids)
        return taken

    def _attempt(
        self, submission: _Submission, writer: StateWriter, leases: ExitStack
    ) -> _Written | None:
        """Checks, writes and applies a request; sets its result if it fails, or changes nothing.
        Whatever is wrong with one request, the others are written.

        Args:
          submission: The request.
          writer: Writes to the file.
          leases: Keeps the version from being closed while the changes are written.

        Raises:
          BundleError: The file cannot be read or written.
        """
        has_written = False
        try:
            leases.enter_context(self._manager.acquire(self._applied.model, submission.version))
            states, result = self._check(submission)
            request = submission.request
            if not states and (result.is_repeated or not request.stream):
                submission.result.set_result(result)
                return None
            with writer.attempt():
                has_written = True
                sequence = writer.put(states)
                # A change of a stream is written even if it is empty, since it has the offset.
                if request.stream:
                    trainings = {0, *(state.training for state in states)}
                    sequence = writer.put_offset(request.stream, trainings, request.offset)
                size = self._applied.size_bytes()
                limit = self._settings.max_changes_bytes
                if size > limit:
                    raise TooLarge(
                        f"the changes of model {self._applied.model!r} would take {size} bytes; "
                        f"at most {limit} are accepted (max_changes_bytes): raise the limit, or "
                        "delete what is not needed"
                    )
                self._applied.apply(submission.version)
        except _FILE_PROBLEMS:
            raise
        except Exception as problem:  # noqa: BLE001 - its sender gets it
            if has_written:
                self._applied.distrust("a change failed while it was applied")
            submission.result.set_exception(_rejection(problem))
            return None
        return _Written(replace(result, sequence=sequence), submission)

    def _acknowledge(self, written: Sequence[_Written]) -> None:
        """Sets the results of changes that are on the disk, and served by this process."""
        for result, submission in written:
            problem = self._applied.problem_of(submission.version)
            if problem:
                error = NotReady(
                    f"the change was made, as sequence {result.sequence}, and is not served yet: "
                    f"{problem}"
                )
                submission.result.set_exception(error)
                continue
            submission.result.set_result(result)

    def _check(self, submission: _Submission) -> tuple[list[State], ChangeResult]:
        """Returns the states that a request leaves, and its result but for the sequence."""
        request = submission.request
        number = submission.version
        applied = self._applied
        repeated_offset = self._repeated_offset(request, number)
        if repeated_offset is not None:
            repeated = ChangeResult(
                applied.model, number, 0, 0, is_repeated=True, stream_offset=repeated_offset
            )
            return [], repeated
        version = applied.version(number)
        problem = applied.problem_of(number)
        if problem:
            raise NotReady(
                f"version {number} of model {applied.model!r} misses earlier changes until shards "
                f"respond: {problem}; no change was made"
            )
        now_s = time.time()
        change = checked_change(version, request, self._settings, now_s)
        before = applied.states_of(request.kind, change.store, change.ids.tolist())
        # Ids whose later state is there already are left out. Others are written although no loaded
        # version has them: a later one may, and their numbers count.
        states, is_outdated = counting_states(change, before, now_s)
        is_unknown = self._is_unknown(change) & ~is_outdated
        ids = change.ids
        return states, ChangeResult(
            model=applied.model,
            version=number,
            sequence=0,
            changed=int(np.count_nonzero(~(is_outdated | is_unknown))),
            outdated=tuple(ids[is_outdated].tolist()[:_LISTED_MAX]),
            unknown=tuple(ids[is_unknown].tolist()[:_LISTED_MAX]),
            outdated_count=int(np.count_nonzero(is_outdated)),
            unknown_count=int(np.count_nonzero(is_unknown)),
            stream_offset=request.offset,
        )

    def _repeated_offset(self, request: ChangeRequest, version: int) -> int | None:
        """Returns how far the stream of a request was applied; None: no part of it was.

        Raises:
          TooLarge: There are too many streams for a new one.
        """
        if not request.stream:
            return None
        applied_offsets = self._applied.offsets(request.stream).get(request.stream)
        if applied_offsets is None:
            streams = len(self._applied.offsets())
            streams_max = self._settings.max_streams
            if streams >= streams_max:
                raise TooLarge.of_limit(
                    "stream",
                    f"a new name beside {streams} of model {self._applied.model!r}",
                    streams_max,
                    "max_streams",
                    "is",
                )
            return None
        # Sent again with the vectors of another training, a stream begins anew.
        training = 0
        if request.vectors:
            training = version
        offset = applied_offsets.get(training)
        if offset is None:
            return None
        # If it begins before the end of what was applied, another sender was faster with a part.
        begin = request.from_offset
        if request.offset <= offset or (begin is not None and begin < offset):
            return offset
        return None

    def _is_unknown(self, change: CheckedChange) -> NDArray[np.bool_]:
        """Returns which ids are to be deleted, or to get attributes, and are in no loaded version,
        [m].
        """
        request = change.request
        is_unknown = np.zeros(change.ids.size, bool)
        if request.action == "upsert":
            return is_unknown
        is_unknown[:] = True
        for version in self._applied.versions:
            store = version.store(request.kind, change.store)
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
    if isinstance(problem, BundleError):
        return InvalidArgument(without_host(str(problem)))
    return problem


def rejection_of_file(problem: Exception) -> Exception:
    """Returns the error for senders if the changes cannot be read or written."""
    if isinstance(problem, ChangesUnavailable):
        return NotReady(f"{problem}; no change was made")
    if isinstance(problem, BundleError):
        return DataLoss(str(problem))
    return problem
