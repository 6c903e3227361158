"""The changes of one model in one process.

    requests --> Submissions --\\
    other processes' records ---> AppliedLog --> ChangedVersion, one for each loaded version
                                                  '- ChangedCorpus, one for each store

`AppliedLog` owns the log, what it says, the versions, and the lock of this state. All others hold
the state where they read or change these, and none waits for it without a deadline:

- **threads of requests** submit, and wait for the result until their deadlines;
- **the thread `rowcast-write-changes`** writes all that was submitted by then. It runs while there
  is something to write;
- **the thread `rowcast-changes`** applies what the process that writes has appended, some ten times
  per second. It waits for no lock: one model must not hold up the others;
- **the threads `rowcast-handed-over`** submit what other processes of the host hand over to the one
  that writes (`hand_over.py`), one for each connection;
- **the thread `rowcast-compact-changes`** compacts the log on command, beside changes;
- **the thread `rowcast-copy-changes`**, where another service is followed, appends copied records;
- **threads that load versions** attach them: the log is applied to a version before it is served.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.changes.log_lock import Writer
from bundle.errors import BundleError
from service.changes.applied_log import AppliedLog
from service.changes.changed_version import ChangedVersion
from service.changes.compactor import Compactor
from service.changes.submissions import Submissions
from service.config import ServiceSettings
from service.contract.changes import AppliedChanges
from service.versions.lifecycle import VersionManager


class ModelChanges:
    """The changes of one model, by their parts. Safe for any number of threads.

    Attributes:
      log: The log as it was applied, and the versions that follow it.
      submissions: Takes requests that change the model.
      compactor: Compacts the log.
    """

    def __init__(
        self,
        model: str,
        path: Path,
        settings: ServiceSettings,
        manager: VersionManager,
        writer: Writer,
    ) -> None:
        """Begins to follow a log.

        Args:
          model: The name of the model.
          path: The log, which need not exist.
          settings: The limits.
          manager: Serves the versions.
          writer: How other processes reach this one once it writes the log.
        """
        self.log = AppliedLog(model, path, manager, writer)
        self.submissions = Submissions(self.log, settings, manager)
        self.compactor = Compactor(self.log)

    def applied(self, deadline: float) -> AppliedChanges:
        """Returns what was changed so far, by any process.

        Args:
          deadline: The monotonic time until which a change that is being written is waited for.

        Raises:
          LogLocked: The disk has not finished the change by then.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        applied = self.log
        with applied.held(deadline):
            applied.follow()
            return AppliedChanges(applied.model, applied.sequence, applied.summary.offsets)

    def status(self, deadline: float) -> dict[str, Any]:
        """Returns the status that operators see.

        Args:
          deadline: See `applied`.

        Raises:
          LogLocked: See `applied`.
        """
        applied = self.log
        with applied.held(deadline):
            # The thread that follows the log reports its problems, which are part of the status.
            with suppress(BundleError, OSError):
                applied.follow()
            return {
                "log": str(applied.path),
                "sequence": applied.sequence,
                "problem": applied.problem or applied.behind,
                "streams": applied.summary.offsets,
                "versions": [_version_status(version) for version in applied.versions],
            }


def _version_status(version: ChangedVersion) -> dict[str, Any]:
    changed = {}
    for (kind, target), count in version.counts.items():
        changed[f"{kind} {target}"] = count
    return {
        "version": version.loaded.version,
        "sequence": version.sequence,
        "changed": changed,
        "dropped": {reason: asdict(dropped) for reason, dropped in version.dropped.items()},
    }
