"""Sums up what the log of a model says about the model as a whole, whichever version is served."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import (
    EXPIRES,
    SEQUENCE,
    Absorption,
    Change,
    Head,
    Run,
    expiring_ids,
)
from service.changes.requests import ChangeRequest

Key = int | str


class LogSummary:
    """What the records of a log say so far of ids, streams and segments. Used under the lock of the
    log.

    Attributes:
      streams: The offset behind the last change of each stream that was applied.
      absorptions: The last absorption by version and corpus.
      expiring: The ids of candidates that have, or had, an expiry, by corpus. No bundle contains
        them.
    """

    def __init__(self) -> None:
        """Begins before the first record."""
        self.streams: dict[str, int] = {}
        self.absorptions: dict[tuple[int, str], Absorption] = {}
        self.expiring: dict[str, set[Key]] = {}
        self._sequences: dict[tuple[str, str], dict[Key, int]] = {}
        """The last sequence that a sender gave a state of an id, by kind and target of the change.
        """

    def add_run(self, run: Run) -> None:
        """Adds what a run of changes says, whose columns are read only if they say something."""
        self._add_head(run.head, run.offset)
        if not {SEQUENCE, EXPIRES}.isdisjoint(run.schema.names):
            self._add_columns(run.joined)

    def add(self, change: Change) -> None:
        """Adds what a change says."""
        self._add_head(change.head, change.offset)
        self._add_columns(change)

    def outdated(self, change: Change) -> NDArray[np.bool_]:
        """Returns whether the log has the same state of each id, or a later one, [m]."""
        sequences = change.numbers(SEQUENCE)
        last_sequences = self._sequences.get((change.head.kind, change.head.target))
        if sequences is None or not last_sequences:
            return np.zeros(change.size, bool)
        pairs = zip(change.ids.tolist(), sequences.tolist(), strict=True)
        # An id without an earlier sequence is compared with the one below its own.
        is_outdated = [last_sequences.get(key, sequence - 1) >= sequence for key, sequence in pairs]
        return np.array(is_outdated, bool)

    def is_repeated(self, request: ChangeRequest) -> bool:
        """Returns whether the log has all of a request from a stream, or a part of it."""
        applied_offset = self.streams.get(request.stream)
        if not request.stream or applied_offset is None:
            return False
        if request.offset <= applied_offset:
            return True
        # It begins before the end of what was applied: another sender was faster with a part of it.
        return request.from_offset is not None and request.from_offset < applied_offset

    def _add_head(self, head: Head, offset: int) -> None:
        if head.absorption is not None:
            self.absorptions[head.version, head.target] = head.absorption
        if head.stream:
            self.streams[head.stream] = max(offset, self.streams.get(head.stream, 0))

    def _add_columns(self, change: Change) -> None:
        head = change.head
        sequences = change.numbers(SEQUENCE)
        if sequences is not None:
            last_sequences = self._sequences.setdefault((head.kind, head.target), {})
            last_sequences.update(zip(change.ids.tolist(), sequences.tolist(), strict=True))
        if head.kind == "candidates":
            ids = expiring_ids([change])
            if ids:
                self.expiring.setdefault(head.target, set()).update(ids)
