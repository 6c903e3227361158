"""Sums up what the log of a model says about the model as a whole, whichever version is served: how
far streams were applied, and which state of each id by its sender's numbers was applied last.

Each value counts by its own number: an upsert or a deletion states all of a candidate, a change of
attributes those that it names. So numbered changes may come in any order: what they leave is what
they would leave in the order of their numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import EXPIRES, LATER, SEQUENCE, Change, Head, Run, left_out_ids
from service.contract.changes import ChangeRequest

Key = int | str
_ATTRIBUTE = "attribute:"
_UNNUMBERED = -math.inf


class _Numbers:
    """The numbers of the states of the ids of one corpus or context store.

    Attributes:
      states: The number of the last upsert or deletion of each id that has one.
      trainings: The version that the vectors belong to, of ids whose last upsert has some.
      attributes: The numbers and values of attributes that were set by later changes, by id.
    """

    def __init__(self) -> None:
        """Begins without numbers."""
        self.states: dict[Key, int] = {}
        self.trainings: dict[Key, int] = {}
        self.attributes: dict[Key, dict[str, tuple[int, Any]]] = {}

    def is_outdated(self, key: Key, number: int, training: int) -> bool:
        """Returns whether a state of an id was applied already, or a later one.

        Args:
          key: The id.
          number: The number of the state.
          training: The version that its vectors belong to; 0: it has none.
        """
        last = self.states.get(key, _UNNUMBERED)
        # The same state with the vectors of a later training is another one.
        is_newly_trained = 0 < self.trainings.get(key, 0) < training
        return last > number or (last == number and not is_newly_trained)

    def has_attribute(self, key: Key, attribute: str, number: int) -> bool:
        """Returns whether a state of an attribute was applied already, or a later one."""
        last, _ = self.attributes.get(key, {}).get(attribute, (_UNNUMBERED, None))
        return max(last, self.states.get(key, _UNNUMBERED)) >= number

    def set_state(self, key: Key, number: int, training: int) -> None:
        """Takes an upsert or a deletion."""
        self.states[key] = number
        if training:
            self.trainings[key] = training
        else:
            self.trainings.pop(key, None)
        attributes = self.attributes.pop(key, {})
        later = {name: state for name, state in attributes.items() if state[0] > number}
        if later:
            self.attributes[key] = later


class LogSummary:
    """What the records of a log say so far. Used under the lock of the log.

    Attributes:
      left_out: The ids of candidates of which no bundle contains the changes, by corpus.
      offsets: The offset behind the last change of each stream. A stream that is sent again with
        the values of another training begins anew: what follows them there follows them again.
    """

    def __init__(self) -> None:
        """Begins before the first record."""
        self.left_out: dict[str, set[Key]] = {}
        self.offsets: dict[str, int] = {}
        self._trained_offsets: dict[tuple[str, int], int] = {}
        """The offset behind the last change of each stream that has values of a training."""
        self._numbers: dict[tuple[str, str], _Numbers] = {}
        """By kind and target."""

    def add_run(self, run: Run) -> None:
        """Adds what a run of changes says, whose columns are read only if they say something."""
        self._add_offset(run.head, run.schema, run.offset)
        numbers = self._numbers_of(run.head)
        if (
            not {SEQUENCE, EXPIRES}.isdisjoint(run.schema.names)
            or run.head.sent_indexes(run.schema)
            or (numbers is not None and numbers.attributes)
        ):
            self._add_columns(run.joined)

    def add(self, change: Change) -> None:
        """Adds what a change says."""
        self._add_offset(change.head, change.columns.schema, change.offset)
        self._add_columns(change)

    def outdated(self, change: Change) -> NDArray[np.bool_]:
        """Returns whether the log has the same state of each id, or a later one, [m]."""
        sequences = change.numbers(SEQUENCE)
        numbers = self._numbers_of(change.head)
        if sequences is None or numbers is None:
            return np.zeros(change.size, bool)
        pairs = zip(change.ids.tolist(), sequences.tolist(), strict=True)
        if change.head.action == "attributes":
            names = _attribute_names(change)
            is_outdated = [
                all(numbers.has_attribute(key, name, number) for name in names)
                for key, number in pairs
            ]
        else:
            training = change.head.training(change.columns.schema)
            is_outdated = [numbers.is_outdated(key, number, training) for key, number in pairs]
        return np.array(is_outdated, bool)

    def with_later_attributes(self, change: Change) -> Change:
        """Returns a change with those values of attributes that changes with larger numbers have
        set, which came before it: in its columns, and in one of their own for versions that it does
        not fit.
        """
        import pyarrow as pa

        sequences = change.numbers(SEQUENCE)
        numbers = self._numbers_of(change.head)
        if sequences is None or numbers is None or not numbers.attributes:
            return change
        later_by_row = [
            {
                name: value
                for name, (last, value) in numbers.attributes.get(key, {}).items()
                if last > number
            }
            for key, number in zip(change.ids.tolist(), sequences.tolist(), strict=True)
        ]
        later_names = {name for later in later_by_row for name in later}
        columns = change.columns
        for position, field in enumerate(columns.schema):
            name = field.name.removeprefix(_ATTRIBUTE)
            if field.name != name and name in later_names:
                values = columns.column(position).to_pylist()
                for row, later in enumerate(later_by_row):
                    values[row] = later.get(name, values[row])
                columns = columns.set_column(position, field, pa.array(values, field.type))
        if change.head.action == "upsert" and later_names:
            texts: list[str | None] = [None] * len(later_by_row)
            for row, later in enumerate(later_by_row):
                if later:
                    texts[row] = json.dumps(later)
            columns = columns.append_column(LATER, pa.array(texts, pa.string()))
        return change.with_columns(columns)

    def repeated_offset(self, request: ChangeRequest, version: int) -> int | None:
        """Returns how far the stream of a request was applied; None: the log has no part of it.

        Args:
          request: The request.
          version: The version that it is sent for.
        """
        applied_offset = self.offsets.get(request.stream)
        if request.vectors:
            applied_offset = self._trained_offsets.get((request.stream, version))
        if not request.stream or applied_offset is None:
            return None
        # If it begins before the end of what was applied, another sender was faster with a part.
        begin = request.from_offset
        if request.offset <= applied_offset or (begin is not None and begin < applied_offset):
            return applied_offset
        return None

    def _numbers_of(self, head: Head) -> _Numbers | None:
        return self._numbers.get((head.kind, head.target))

    def _add_offset(self, head: Head, schema: Any, offset: int) -> None:
        if not head.stream:
            return
        self.offsets[head.stream] = offset
        training = head.training(schema)
        if training:
            self._trained_offsets[head.stream, training] = offset

    def _add_columns(self, change: Change) -> None:
        head = change.head
        if head.kind == "candidates":
            ids = left_out_ids([change])
            if ids:
                self.left_out.setdefault(head.target, set()).update(ids)
        self._replace_attributes(change)
        sequences = change.numbers(SEQUENCE)
        if sequences is None:
            return
        numbers = self._numbers.setdefault((head.kind, head.target), _Numbers())
        keys = change.ids.tolist()
        pairs = zip(keys, sequences.tolist(), strict=True)
        if head.action != "attributes":
            training = change.head.training(change.columns.schema)
            for key, number in pairs:
                numbers.set_state(key, number, training)
            return
        columns = {
            name: change.columns.column(f"{_ATTRIBUTE}{name}") for name in _attribute_names(change)
        }
        for row, (key, number) in enumerate(pairs):
            for name, column in columns.items():
                if not numbers.has_attribute(key, name, number):
                    states = numbers.attributes.setdefault(key, {})
                    states[name] = number, column[row].as_py()

    def _replace_attributes(self, change: Change) -> None:
        """Replaces values of attributes by those of a change. Their numbers stay, so that it does
        not matter which of the changes before it are still in the log.
        """
        numbers = self._numbers_of(change.head)
        if numbers is None or not numbers.attributes:
            return
        for name in _attribute_names(change):
            column = change.columns.column(f"{_ATTRIBUTE}{name}")
            for row, key in enumerate(change.ids.tolist()):
                states = numbers.attributes.get(key, {})
                if name in states:
                    number, _ = states[name]
                    states[name] = number, column[row].as_py()


def _attribute_names(change: Change) -> list[str]:
    return [
        name.removeprefix(_ATTRIBUTE)
        for name in change.columns.schema.names
        if name.startswith(_ATTRIBUTE)
    ]
