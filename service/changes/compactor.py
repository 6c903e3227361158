"""Compacts the log of a model in the background, since that takes longer than a request may."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future

from bundle.changes.compaction import Compaction
from bundle.errors import BundleError
from service.changes.applied_log import AppliedLog
from service.errors import DeadlineExceeded, NotReady, ServiceError
from service.observability.logging import fields, logger

log = logger(__name__)


class Compactor:
    """Compacts one log. Safe for any number of threads."""

    def __init__(self, applied: AppliedLog) -> None:
        """Begins nothing yet; `applied`: the log."""
        self._log = applied
        self._compaction: Future[Compaction] | None = None
        """The last compaction, which may be in progress."""
        self._lock = threading.Lock()

    def compact(self, versions: Collection[int], deadline: float) -> Compaction:
        """Compacts the log, or waits for the compaction that is in progress, by the process that
        writes it.

        Args:
          versions: The versions that may be served.
          deadline: The monotonic time until which it is waited for.

        Raises:
          DeadlineExceeded: It goes on.
          NotReady: The log cannot be read or written; it is as it was.
        """
        with self._lock:
            if self._compaction is None or self._compaction.done():
                self._compaction = Future()
                # A daemon: a process that ends does not wait for it, and leaves the log as it was.
                threading.Thread(
                    target=self._run,
                    args=(versions, self._compaction),
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

    def _run(self, versions: Collection[int], compaction: Future[Compaction]) -> None:
        """Compacts the log; sets the result."""
        try:
            result = self._log.compact(versions)
        except ServiceError as problem:
            compaction.set_exception(problem)
        except (BundleError, OSError) as problem:
            error = NotReady(f"change log {self._log.path} cannot be compacted: {problem}")
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
