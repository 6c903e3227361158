"""The changes file of one model as this process has applied it, and the versions that it is applied
to.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from bundle.changes.file import ChangesFile, StateWriter
from bundle.changes.states import State
from bundle.errors import BundleError, ChangesLocked, ChangesUnavailable, CopyDiffers
from bundle.format.changes_position import ChangesPosition
from service.changes.changed_version import ChangedVersion, included_of
from service.changes.embedding import ShardsFailed
from service.errors import NotReady
from service.observability.logging import fields, logger
from service.versions.lifecycle import VersionManager
from service.versions.rejections import ShardsMissing
from service.versions.version import ModelVersion

log = logger(__name__)

_COPIED_CHARACTERS = 8 << 20
"""Size of the contents of the states that are sent to a copy at a time."""
_RETRY_S = 0.5
"""Time until a version that is behind tries again. With less, it calls shards that are gone in
vain; with more, it serves an old state for longer.
"""
_PAUSE_PER_RESTORE = 10
"""Time between attempts to apply all states anew, as a multiple of what one takes."""
WAIT_S = 10.0
"""Time for which work in the background waits for a lock, before it is given up and tried again."""


class AppliedFile:
    """A changes file, and the loaded versions that it is applied to. Safe for any number of
    threads.

    Any process of the host writes the file, one at a time, and applies what the others have
    written. The state has a lock of the process.

    On a router, to apply a change may need shards. A version that misses changes because shards
    did not respond is behind: it serves its last state, takes no further change, and tries again.

    Attributes:
      model: The name of the model.
      versions: The versions that the changes are applied to.
      problem: Why the changes cannot be followed; "": they can.
    """

    def __init__(self, model: str, path: Path, manager: VersionManager) -> None:
        """Begins without versions. Nothing is read yet.

        Args:
          model: The name of the model.
          path: The file, which need not exist.
          manager: Serves the versions.
        """
        self.model = model
        self.versions: list[ChangedVersion] = []
        self.problem = ""
        self._manager = manager
        self._file = ChangesFile(path, model)
        self._copied_file = ChangesFile(path, model)
        """The same file, as it is read for copies."""
        self._prepared: ChangedVersion | None = None
        """The version that is to be attached next."""
        self._behind: dict[ChangedVersion, str] = {}
        """The versions that miss changes of the file, and the reason."""
        self._retry_at = 0.0
        self._unsound = ""
        """Why versions may have changes that the file does not have; "": they do not."""
        self._examined = 0
        """The sequence up to which `forget_ended` has examined the states."""
        self._lock = threading.RLock()
        self._copied_lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def sequence(self) -> int:
        """The sequence of the last state that was read."""
        return self._file.sequence

    @property
    def served_sequence(self) -> int:
        """The sequence of the last state that all versions are served with."""
        return min([version.served.changes for version in self.versions], default=self.sequence)

    @property
    def behind(self) -> str:
        """Why a version has not the changes of the file; "": all have. The caller holds the
        state.
        """
        if self._unsound:
            return self._unsound
        for version, problem in self._behind.items():
            return f"version {version.loaded.version} waits for shards: {problem}"
        return ""

    def held(self, deadline: float | None = None) -> AbstractContextManager[None]:
        """Holds the state: while the file is read or written, while versions change, and while a
        caller combines several calls.

        Args:
          deadline: The monotonic time until which other threads are waited for; None: in
            `WAIT_S`.

        Raises:
          ChangesLocked: Another thread has held the state until the deadline.
        """
        if deadline is None:
            deadline = time.monotonic() + WAIT_S
        return _held(self._lock, deadline, f"{self.path} is being written; try again")

    def attach(self, loaded: ModelVersion, serve: Callable[[ModelVersion], object]) -> None:
        """Applies the changes to a version and serves it, so that the version misses none.

        Args:
          loaded: The version as it was loaded.
          serve: Called with the version as it is with its changes.

        Raises:
          ChangesLocked: A thread has held the state for `WAIT_S`.
          BundleError: The file cannot be read.
          ShardsMissing: A shard that a change needs does not respond.
        """
        # Under one lock: a change that is made meanwhile is applied before the version is served,
        # or afterwards, but never missed.
        with self.held():
            version = self._changed(loaded)
            self._prepared = None
            serve(version.served)
            self.versions.append(version)

    @contextmanager
    def prepared(self, loaded: ModelVersion) -> Iterator[ModelVersion]:
        """Yields a version as it is with its changes so far, before it is attached, which then
        applies only what is new. Raises as `attach`.
        """
        with self.held():
            self._prepared = self._changed(loaded)
            served = self._prepared.served
        try:
            yield served
        except BaseException:
            self._prepared = None
            raise

    def _changed(self, loaded: ModelVersion) -> ChangedVersion:
        """Returns a version with its changes so far; the caller holds the state."""
        version = self._prepared
        if (
            version is None
            or version.loaded is not loaded
            or version.included != included_of(loaded, self._file)
        ):
            version = ChangedVersion(loaded, self._file)
        try:
            version.follow(self._file)
            version.publish()
        except ShardsFailed as problem:
            raise ShardsMissing(f"its changes cannot be applied: {problem}") from problem
        return version

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
        """Applies what other processes have written, and serves it. Waits for no thread: if one has
        the state, the next call tries again.

        Returns:
          Whether no other thread had the state.

        Raises:
          BundleError: The file cannot be read.
        """
        now = time.monotonic()
        try:
            with self.held(now):
                is_due = bool(self._behind or self._unsound) and now >= self._retry_at
                if self._file.has_news() or is_due:
                    self._apply()
                    self.publish()
        except ChangesLocked:
            return False
        return True

    @contextmanager
    def caught_up(self, deadline: float) -> Iterator[None]:
        """Applies what other processes have written, and serves it; holds the state to the end.

        Args:
          deadline: The monotonic time until which others are waited for.

        Raises:
          ChangesLocked: A thread has held the state until the deadline.
          BundleError: The file cannot be read.
        """
        with self.held(deadline):
            if self._file.has_news():
                self._apply()
                self.publish()
            yield

    def version(self, number: int) -> ChangedVersion:
        """Returns a version that has the changes.

        Raises:
          NotReady: No version of this number has them any more.
        """
        for version in self.versions:
            if version.loaded.version == number:
                return version
        raise NotReady(f"version {number} of model {self.model!r} is not served any more")

    def problem_of(self, number: int) -> str:
        """Returns why a version has not the changes of the file; "": it has."""
        if self._unsound:
            return self._unsound
        for version, problem in self._behind.items():
            if version.loaded.version == number:
                return problem
        return ""

    def offsets(self, stream: str | None = None) -> dict[str, dict[int, int]]:
        """See `ChangesFile.offsets`. The caller holds the state."""
        return self._file.offsets(stream)

    def states_of(
        self, kind: str, store: str, keys: Sequence[int | str]
    ) -> dict[int | str, dict[str, State]]:
        """See `ChangesFile.states_of`. The caller holds the state."""
        return self._file.states_of(kind, store, keys)

    def size_bytes(self) -> int:
        """See `ChangesFile.size_bytes`. The caller holds the state."""
        return self._file.size_bytes()

    @contextmanager
    def writing(self, deadline: float) -> Iterator[StateWriter]:
        """Yields what writes states, and serves them when they are on the disk; holds the state to
        the end. With an error, none of them is written.

        Args:
          deadline: The monotonic time until which others are waited for.

        Raises:
          ChangesLocked: Another thread has held the state, or a process has written, until the
            deadline.
          ChangesUnavailable: Versions have changes that the file does not have, or the file cannot
            be written.
          BundleError: The file cannot be read.
        """
        with self.held(deadline):
            if self._unsound:
                self._rebuild()
            if self._unsound:
                raise ChangesUnavailable(f"{self._unsound}; no change was made")
            is_writing = False
            try:
                with self._file.writing(deadline) as writer:
                    is_writing = True
                    self._apply()
                    yield writer
            except BaseException as problem:
                if is_writing:
                    # Applied and not written: the versions must be those of the file again.
                    self._unsound = str(problem)
                    self._rebuild()
                    self.publish()
                raise
            try:
                self.publish()
            except Exception:
                log.exception("changes_failed", extra=fields(model=self.model))
                self.distrust("changes of the file could not be applied")

    def apply(self, number: int | None = None) -> None:
        """Applies what is new in the file, while this process writes it, and serves nothing yet.

        Args:
          number: The version whose errors are raised; None: none is.

        Raises:
          ShardsFailed: A shard that this version needs does not respond.
        """
        self._apply()
        for version, problem in self._behind.items():
            if version.loaded.version == number:
                raise ShardsFailed(problem)

    def publish(self) -> None:
        """Serves all versions as they are now. The caller holds the state."""
        if self._unsound and time.monotonic() >= self._retry_at:
            self._rebuild()
        if self._unsound:
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

    def distrust(self, problem: str) -> None:
        """Has all states applied anew by the next `publish`, since versions may have changes that
        the file does not have. The caller holds the state.
        """
        self._unsound = problem

    def position(self, deadline: float | None = None) -> ChangesPosition | None:
        """Returns the last state of the file; None: it has none; see `held`."""
        with self.held(deadline):
            return self._file.position()

    def after(
        self, position: ChangesPosition | None, deadline: float
    ) -> tuple[list[State], int, int]:
        """Returns states behind the last one of a copy; see `ChangesFile.after`."""
        busy = f"{self.path} is being read for another copy; try again"
        with _held(self._copied_lock, deadline, busy):
            return self._copied_file.after(position, _COPIED_CHARACTERS)

    def copy(self, states: Sequence[State], forgotten: int) -> int:
        """Writes states of the file that this one is a copy of, and serves them; returns the
        sequence of the last one.

        Args:
          states: The states, ascending.
          forgotten: What that file has forgotten; see `ChangesFile.lacks`.

        Raises:
          CopyDiffers: The copy lacks deletions that the file has forgotten.
          BundleError: The file cannot be read or written, or a thread has held the state, or a
            process has written, for `WAIT_S`.
        """
        with self.held():
            if self._file.lacks(forgotten):
                raise CopyDiffers(
                    f"{self.path} lacks deletions up to sequence {forgotten}, which the service "
                    "that takes the changes has forgotten; remove it, so that a new copy is made"
                )
        if states:
            with self.writing(time.monotonic() + WAIT_S) as writer:
                last = self.sequence
                new_states = [state for state in states if state.sequence > last]
                writer.copy(new_states, forgotten)
                self._apply()
        return self.sequence

    def back_up(self, target: Path, deadline: float) -> int:
        """Writes a copy of the file; see `ChangesFile.back_up`."""
        busy = f"{self.path} is being read for another copy; try again"
        with _held(self._copied_lock, deadline, busy):
            return self._copied_file.back_up(target)

    def forget_ended(self, before_s: float) -> int:
        """Removes states that have had no effect since a time, and cannot have any in the versions
        that are loaded: deletions, expired candidates and attributes of what no bundle has.
        Examines a part of the file; the next call examines the next one.

        Args:
          before_s: The time, in Unix seconds.

        Returns:
          How many candidates and contexts were removed.

        Raises:
          BundleError: See `copy`.
        """
        with self.held():
            ended = self._file.ended(self._examined, before_s)
            self._examined = ended[-1].sequence if ended else 0
            items: dict[tuple[str, str], list[int | str]] = {}
            for state in ended:
                items.setdefault((state.kind, state.store), []).append(state.id)
            removed = []
            for (kind, name), keys in items.items():
                is_needed = np.zeros(len(keys), bool)
                for version in self.versions:
                    store = version.store(kind, name)
                    if store is not None:
                        is_needed |= store.is_known(keys)
                removed += [
                    (kind, name, key)
                    for key, needed in zip(keys, is_needed, strict=True)
                    if not needed
                ]
            if removed and self.versions:
                with self.writing(time.monotonic() + WAIT_S) as writer:
                    writer.forget(removed)
                return len(removed)
        return 0

    def close(self) -> None:
        """Closes the file, unless a thread has the state."""
        with suppress(ChangesLocked), self.held(time.monotonic()):
            self._file.close()
        with suppress(ChangesLocked), _held(self._copied_lock, time.monotonic(), ""):
            self._copied_file.close()

    def _apply(self) -> None:
        """Applies to each version what it lacks. A version falls behind if shards that a change
        needs do not respond.
        """
        # A copy gets to the mark by which a bundle knows it once the version is loaded.
        if any(
            version.included != included_of(version.loaded, self._file) for version in self.versions
        ):
            self._rebuild()
            return
        now = time.monotonic()
        for version in self.versions:
            if version in self._behind and now < self._retry_at:
                continue
            try:
                version.follow(self._file)
            except ShardsFailed as problem:
                self._fall_behind(version, problem)
            else:
                self._behind.pop(version, None)

    def _rebuild(self) -> None:
        """Applies all states anew. If the file cannot be read now, it is tried again later."""
        versions = []
        behind = dict[ChangedVersion, ShardsFailed]()
        began = time.monotonic()
        self._retry_at = began + _RETRY_S
        try:
            for version in self.versions:
                restored = ChangedVersion(version.loaded, self._file)
                versions.append(restored)
                try:
                    restored.follow(self._file)
                except ShardsFailed as problem:
                    behind[restored] = problem
        except BundleError as problem:
            # The last state stays.
            self._unsound = str(problem)
            now = time.monotonic()
            self._retry_at = now + max(_RETRY_S, _PAUSE_PER_RESTORE * (now - began))
            return
        self.versions = versions
        self._behind = {}
        for version, failure in behind.items():
            self._fall_behind(version, failure)
        self._unsound = ""

    def _fall_behind(self, version: ChangedVersion, problem: ShardsFailed) -> None:
        """Leaves a version with its last whole state until shards respond."""
        self._behind[version] = str(problem)
        self._retry_at = time.monotonic() + _RETRY_S


class _ThreadLock(Protocol):
    """A lock of the module `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Waits for the lock; returns whether it was acquired."""

    def release(self) -> None:
        """Releases the lock."""


@contextmanager
def _held(lock: _ThreadLock, deadline: float, problem: str) -> Iterator[None]:
    """Holds a lock of this process, which is waited for until a monotonic time.

    Args:
      lock: The lock.
      deadline: The time; infinite: it is waited for as long as it takes.
      problem: What the error says.

    Raises:
      ChangesLocked: Another thread has held the lock until the deadline.
    """
    timeout_s = -1.0
    if deadline < math.inf:
        timeout_s = max(0.0, deadline - time.monotonic())
    if not lock.acquire(timeout=timeout_s):
        raise ChangesLocked(problem)
    try:
        yield
    finally:
        lock.release()
