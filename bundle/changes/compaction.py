"""Finds the changes of a log that later ones have not replaced.

What is left leaves the state that all changes leave, in every version, and numbers and streams,
too. Each thing below needs the last change that says it:

    a candidate or context      its upsert or deletion, which states all of it
                                its upsert or deletion with a sequence, whose number counts longer
                                its attributes, by the columns that are changed together, unless an
                                upsert or deletion behind them has as large a sequence
                                an upsert by which no bundle contains its changes
    a stream                    its last offset, and that of the vectors of each training

A change is left with those of its ids alone that need it, the last one even without any, since the
sequence of the log is its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from bundle.changes.records import SEQUENCE, Change, left_out_ids

Key = int | str
Thing = tuple[Any, ...]
"""What a change says of each of its ids."""
_UNNUMBERED = -math.inf


class Compaction(NamedTuple):
    """What a compaction did.

    Attributes:
      changes: The number of changes in the log now.
      dropped: The number of changes that were left out. Of others, some ids may have been.
      bytes_before: The size of the log before, in bytes.
      bytes_after: Its size now.
    """

    changes: int
    dropped: int
    bytes_before: int
    bytes_after: int


class NeededChanges:
    """The changes of a log that are needed, as far as they were added: ids and sequences, but no
    values.
    """

    def __init__(self) -> None:
        """Begins before the first change."""
        self._last = 0
        self._sequences: defaultdict[Thing, dict[Key, int]] = defaultdict(dict)
        """The sequence of the change that each id needs for a thing."""
        self._numbers: defaultdict[Thing, dict[Thing, dict[Key, float]]] = defaultdict(dict)
        """The sender's numbers of attributes by their things, by those of their stores."""
        self._streams: dict[tuple[str, int], int] = {}
        """The sequence of the last change of each stream, by the training of its vectors."""

    def add(self, sequence: int, change: Change) -> None:
        """Adds the next change of the log.

        Args:
          sequence: Its sequence.
          change: The change.
        """
        self._last = sequence
        head = change.head
        if head.stream:
            self._streams[self._stream_of(change)] = sequence
        for thing, ids in self._things(change):
            self._sequences[thing].update(dict.fromkeys(ids, sequence))
        self._add_numbers(change)

    def part(self, sequence: int, change: Change) -> Change | None:
        """Returns a change of those of its ids that need it; the change itself if all do; None:
        nothing needs it.

        Args:
          sequence: Its sequence in the log.
          change: A change that was added, or one behind these.
        """
        if sequence > self._last:
            return change
        is_needed = np.zeros(change.size, bool)
        all_ids = change.ids.tolist()
        for thing, _ in self._things(change):
            sequences = self._sequences[thing]
            is_needed |= np.array([sequences.get(key) == sequence for key in all_ids], bool)
        ends = {self._last, self._streams.get(self._stream_of(change))}
        if not is_needed.any() and sequence not in ends:
            return None
        if is_needed.all():
            return change
        return change.only(is_needed)

    def _stream_of(self, change: Change) -> tuple[str, int]:
        head = change.head
        return head.stream, head.training(change.columns.schema)

    def _things(self, change: Change) -> Iterator[tuple[Thing, Collection[Key]]]:
        """Yields what a change says, and the ids of which it does."""
        head = change.head
        schema = change.columns.schema
        ids = change.ids.tolist()
        target: Thing = (head.kind, head.target)
        if head.action == "attributes":
            yield (*target, str(schema)), ids
            return
        yield (*target, "state"), ids
        if SEQUENCE in schema.names:
            yield (*target, "number"), ids
        if head.kind == "candidates":
            yield (*target, "left out"), left_out_ids([change])

    def _add_numbers(self, change: Change) -> None:
        """Notes the numbers of attributes, and forgets attributes that a change replaces."""
        head = change.head
        ids = change.ids.tolist()
        numbers: list[float] = [_UNNUMBERED] * len(ids)
        sequences = change.numbers(SEQUENCE)
        if sequences is not None:
            numbers = sequences.tolist()
        numbers_by_thing = self._numbers[head.kind, head.target]
        if head.action == "attributes":
            for thing, _ in self._things(change):
                numbers_by_thing.setdefault(thing, {}).update(zip(ids, numbers, strict=True))
            return
        for thing, attribute_numbers in numbers_by_thing.items():
            for key, number in zip(ids, numbers, strict=True):
                if attribute_numbers.get(key, math.inf) <= number:
                    del attribute_numbers[key]
                    del self._sequences[thing][key]
