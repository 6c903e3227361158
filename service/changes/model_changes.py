"""The changes of one model in one process.

    requests --> Submissions --\\
    what other processes write --> AppliedFile --> ChangedVersion, one for each loaded version
                                                    '- ChangedCorpus, one for each store

`AppliedFile` owns the file, the versions, and the lock of this state. All others hold the state
where they read or change these, and none waits for it without a deadline:

- **threads of requests** submit, and wait for the result until their deadlines;
- **the thread `rowcast-write-changes`** writes all that was submitted by then. It runs while there
  is something to write;
- **the thread `rowcast-changes`** applies what other processes have written, some ten times per
  second. It waits for no lock: one model must not hold up the others;
- **the thread `rowcast-copy-changes`**, where another service is followed, writes copied states;
- **threads that load versions** attach them: the changes are applied to a version before it is
  served.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.errors import BundleError
from service.changes.applied_file import AppliedFile
from service.changes.changed_version import ChangedVersion
from service.changes.submissions import Submissions
from service.config import ServiceSettings
from service.contract.changes import AppliedChanges
from service.versions.lifecycle import VersionManager


class ModelChanges:
    """The changes of one model, by their parts. Safe for any number of threads.

    Attributes:
      file: The file as it was applied, and the versions that it is applied to.
      submissions: Takes requests that change the model.
    """

    def __init__(
        self, model: str, path: Path, settings: ServiceSettings, manager: VersionManager
    ) -> None:
        """Begins to follow a file.

        Args:
          model: The name of the model.
          path: The file, which need not exist.
          settings: The limits.
          manager: Serves the versions.
        """
        self.file = AppliedFile(model, path, manager)
        self.submissions = Submissions(self.file, settings, manager)

    def applied(self, deadline: float) -> AppliedChanges:
        """Returns what was changed so far, by any process.

        Args:
          deadline: The monotonic time until which a change that is being written is waited for.

        Raises:
          ChangesLocked: The disk has not finished the change by then.
          BundleError: The file cannot be read.
        """
        applied = self.file
        with applied.caught_up(deadline):
            return AppliedChanges(applied.model, applied.sequence, _last_offsets(applied))

    def status(self, deadline: float) -> dict[str, Any]:
        """Returns the status that operators see.

        Args:
          deadline: See `applied`.

        Raises:
          ChangesLocked: See `applied`.
        """
        applied = self.file
        with applied.held(deadline):
            offsets = {}
            size_bytes = 0
            # The thread that follows the file reports its problems, which are part of the status.
            with suppress(BundleError):
                applied.follow()
                offsets = _last_offsets(applied)
                size_bytes = applied.size_bytes()
            return {
                "file": str(applied.path),
                "bytes": size_bytes,
                "sequence": applied.sequence,
                "problem": applied.problem or applied.behind,
                "streams": offsets,
                "versions": [_version_status(version) for version in applied.versions],
            }


def _last_offsets(applied: AppliedFile) -> dict[str, int]:
    return {stream: by_training[0] for stream, by_training in applied.offsets().items()}


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
