"""Compacts the log of a model: puts a log without the changes that later ones have replaced in its
place. That takes about as long as to apply the log, and longer than a request may; changes wait
only at its end, while what is left is applied.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future

from bundle.changes.compaction import Compaction, NeededChanges
from bundle.changes.log import CHECKSUMS_MAX
from bundle.changes.records import encode
from bundle.errors import BundleError, LogUnsynced
from bundle.storage.frames import Record
from service.changes.applied_log import WAIT_S, AppliedLog
from service.errors import DeadlineExceeded, NotReady, ServiceError
from service.observability.logging import fields, logger

log = logger(__name__)


class Compactor:
    """Compacts one log, in the background. Safe for any number of threads."""

    def __init__(self, applied: AppliedLog) -> None:
        """Begins nothing yet; `applied`: the log."""
        self._log = applied
        self._compaction: Future[Compaction] | None = None
        """The last compaction, which may be in progress."""
        self._lock = threading.Lock()

    def compact(self, deadline: float) -> Compaction:
        """Compacts the log, or waits for the compaction that is in progress, by the process that
        writes it.

        Args:
          deadline: The monotonic time until which it is waited for.

        Raises:
          DeadlineExceeded: It goes on.
          NotReady: The log cannot be read or written; it is as it was, unless the message says that
            it was compacted.
        """
        with self._lock:
            if self._compaction is None or self._compaction.done():
                self._compaction = Future()
                # A daemon: a process that ends does not wait for it, and leaves the log as it was.
                threading.Thread(
                    target=self._run,
                    args=(self._compaction,),
                    name="rowcast-compact-changes",
                    daemon=True,
                ).start()
            compaction = self._compaction
        try:
            return compaction.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as problem:
            raise DeadlineExceeded(
                f"change log {self._log.path} is still being compacted, which goes on: send the "
                "command again to wait for it"
            ) from problem

    def _compact(self) -> Compaction:
        """Does what `compact` describes. Without changes that others have replaced, the log stays.

        Raises:
          NotReady: Another process writes the log now; it is as it was.
          LogUnsynced: The log was compacted, and a loss of power may bring back the one before.
          BundleError: The log is damaged or cannot be written, or a thread has held its state for
            `WAIT_S`; likewise.
          OSError: The log cannot be read, or the new one cannot be written; likewise.
        """
        with self._log.writing(time.monotonic() + WAIT_S) as writer:
            rewrite = writer.rewrite()
        with rewrite:
            needed = NeededChanges()
            former: deque[tuple[int, int]] = deque(maxlen=CHECKSUMS_MAX)
            for record, change in self._log.changes(writer):
                needed.add(record.sequence, change)
                former.append((record.sequence, record.checksum))
            writer.begin(rewrite, former)

            changes = 0
            dropped = 0
            is_smaller = False
            position = 0
            for record, change in self._log.changes(writer):
                position = record.end
                part = needed.part(record.sequence, change)
                if part is None:
                    dropped += 1
                    continue
                changes += 1
                if part is change:
                    rewrite.append(record)
                else:
                    is_smaller = True
                    rewrite.append(Record(record.sequence, encode(part)))
            if not dropped and not is_smaller:
                return Compaction(changes, 0, position, position)
            # Most of it is on the disk before changes wait.
            rewrite.sync()
            bytes_before = self._log.size_bytes
            changes += self._log.replace(writer, rewrite, position)
            return Compaction(changes, dropped, bytes_before, self._log.size_bytes)

    def _run(self, compaction: Future[Compaction]) -> None:
        """Compacts the log; sets the result."""
        try:
            result = self._compact()
        except ServiceError as problem:
            compaction.set_exception(problem)
        except LogUnsynced as problem:
            # Both have the same changes, and the next change is made once the new one is kept.
            error = NotReady(f"change log {self._log.path} was compacted; {problem}")
            compaction.set_exception(error)
        except (BundleError, OSError) as problem:
            error = NotReady(f"a compaction of change log {self._log.path} failed: {problem}")
            compaction.set_exception(error)
        except BaseException as problem:
            log.exception("changes_failed", extra=fields(model=self._log.model))
            compaction.set_exception(problem)
        else:
            about = fields(
                model=self._log.model,
                dropped=result.dropped,
                bytes_before=result.bytes_before,
                bytes_after=result.bytes_after,
            )
            log.info("changes_compacted", extra=about)
            compaction.set_result(result)
