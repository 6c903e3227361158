"""Applies the log to a version that was loaded: many records at a time, with the result of applying
them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bundle.changes.log import Record
from bundle.changes.records import Run, decode_runs
from service.changes.changed_version import ChangedVersion
from service.changes.log_summary import LogSummary
from service.changes.segments import UNUSABLE


def replay(version: ChangedVersion, parts: Iterable[Sequence[Record]], summary: LogSummary) -> None:
    """Applies the changes of a log that a version lacks, but for those that its bundle contains.

    Corpora that have segments begin with the last ones, if these can be used.

    Args:
      version: The version, before any change, or one that misses the last ones.
      parts: The records of the log from the first one on, in parts that follow each other.
      summary: The summary of all records.

    Raises:
      FormatError: A record holds no change that this release reads.
      ShardsFailed: A shard does not respond; the version still lacks the records behind.
    """
    is_fresh = not version.sequence
    if is_fresh:
        _begin_with_segments(version, summary)
    for records in parts:
        for run in decode_runs(records):
            lacking = run.behind(version.sequence)
            if lacking is not None:
                _apply(version, lacking, summary, is_fresh)
        # Records that do not concern the version count as applied. Replaced candidates are
        # forgotten between the parts: a start holds no more than the last states.
        version.set_sequence(records[-1].sequence)
        version.compact()


def _begin_with_segments(version: ChangedVersion, summary: LogSummary) -> None:
    """Begins with the last segments of each corpus: then only its later changes are applied."""
    for (number, corpus), absorption in summary.absorptions.items():
        if not version.uses(corpus, number, absorption):
            continue
        try:
            version.begin_with(corpus, absorption)
        except UNUSABLE as problem:
            version.unusable[corpus] = str(problem)


def _apply(version: ChangedVersion, run: Run, summary: LogSummary, is_fresh: bool) -> None:
    """Applies a run of which a version lacks all changes.

    Args:
      version: The version.
      run: The run.
      summary: The summary of the log.
      is_fresh: Whether the version began with the last segments.
    """
    head = run.head
    lacking: Run | None = run
    if head.kind == "candidates":
        segments_sequence = version.begun.get(head.target, 0)
        # A fresh version has the last segments already, or cannot use them.
        if head.absorption is not None:
            if not is_fresh and head.absorption.sequence > segments_sequence:
                version.apply_run(run)
            return
        lacking = run.behind(segments_sequence)

    # An export with the log contains changes of candidates and contexts, but none of rows.
    if lacking is not None and head.kind != "rows":
        bundle_sequence = version.loaded.manifest.changes_included or 0
        in_bundle = lacking.up_to(bundle_sequence)
        if in_bundle is not None:
            _apply_expiring(version, in_bundle, summary)
        lacking = lacking.behind(bundle_sequence)
    if lacking is not None:
        version.apply_run(lacking)


def _apply_expiring(version: ChangedVersion, run: Run, summary: LogSummary) -> None:
    """Applies the part of a run that a bundle leaves out although it contains the run: changes of
    candidates that expire.
    """
    expiring = summary.expiring.get(run.head.target, set())
    if run.head.kind != "candidates" or not expiring:
        return
    for sequence, change in run.changes:
        is_expiring = np.array([key in expiring for key in change.ids.tolist()], bool)
        if is_expiring.any():
            version.apply(sequence, change.only(is_expiring))
