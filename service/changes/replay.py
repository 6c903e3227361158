"""Applies the log to a version that was loaded: many records at a time, with the result of applying
them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bundle.changes.records import Run, decode_runs
from bundle.storage.frames import Record
from service.changes.changed_version import ChangedVersion
from service.changes.log_summary import LogSummary


def replay(
    version: ChangedVersion,
    parts: Iterable[Sequence[Record]],
    summary: LogSummary,
) -> None:
    """Applies the changes of a log that a version lacks, but for those that its bundle contains.

    Args:
      version: The version, before any change, or one that misses the last ones.
      parts: The records of the log from the first one on, in parts that follow each other.
      summary: The summary of all records.

    Raises:
      FormatError: A record holds no change that this release reads.
      ShardsFailed: A shard does not respond; the version still lacks the records behind.
    """
    for records in parts:
        for run in decode_runs(records):
            apply_run(version, run, summary)
        # Records that do not concern the version count as applied.
        version.set_sequence(records[-1].sequence)


def apply_run(version: ChangedVersion, run: Run, summary: LogSummary) -> None:
    """Applies those of a run of changes that a version lacks, but for those that its bundle
    contains; arguments and errors as of `replay`.
    """
    lacking = run.behind(version.sequence)
    if lacking is None:
        return
    in_bundle = lacking.up_to(version.included)
    if in_bundle is not None:
        _apply_left_out(version, in_bundle, summary)
    lacking = lacking.behind(version.included)
    if lacking is not None:
        version.apply_run(lacking)
    version.set_sequence(run.sequences[-1])


def _apply_left_out(version: ChangedVersion, run: Run, summary: LogSummary) -> None:
    """Applies the part of a run that a bundle leaves out although it contains the run."""
    left_out = summary.left_out.get(run.head.target, set())
    if run.head.kind != "candidates" or not left_out:
        return
    for sequence, change in run.changes:
        is_left_out = np.array([key in left_out for key in change.ids.tolist()], bool)
        if is_left_out.any():
            version.apply(sequence, change.only(is_left_out))
