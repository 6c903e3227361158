"""Several inputs -> ids: their values hashed together, or written as one string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bundle.errors import FeatureError
from bundle.features.columns import Column, checked_offsets
from bundle.features.rules.hashing import concatenated, hashes
from bundle.features.rules.ids import Rule, rule_of, within
from bundle.features.rules.texts import Text
from bundle.format.id_rules import CrossedIds, CrossKey, IdentityIds, JoinedIds
from bundle.tables.id_values import Rows, Values, strings, without
from bundle.tables.offsets import Offsets, offsets_of
from bundle.tables.vocabularies import Vocabulary

COMBINATIONS_MAX = 1 << 20
"""Of the values of one feature's inputs in a call: a few long bags have a great many."""


class Key:
    """One of several inputs: the number, or the string, of each of its values."""

    def __init__(self, name: str, entry: CrossKey, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Begins the key of input `name`."""
        self.name = name
        self.entry = entry
        self._text = Text(entry.steps) if entry.steps else None
        self._rule: Rule | None = None
        if entry.ids is not None or entry.dtype == "int64":
            self._rule = rule_of(entry.ids or IdentityIds(), vocabularies)

    def packed(self, column: Column, n: int) -> tuple[Values, Offsets]:
        """Returns values and offsets of n examples, without the values that only fill up."""
        offsets = checked_offsets(self.name, column, n)
        if self.entry.padding is None:
            return column.values, offsets
        return without(self.entry.padding, column.values, offsets)

    def numbers(self, values: Values) -> Rows:
        """Returns [m] int64: the integer or the row of each value, or the hash of a string."""
        found = self.written(values)
        return hashes(self.name, found).view(np.int64) if self._rule is None else found

    def written(self, values: Values) -> Values:
        """Returns the integer, the row or the string of each value."""
        if self._text is not None:
            values = self._text.changed(self.name, values)
        if self._rule is None:
            return strings(self.name, values)
        rows = self._rule.resolve(self.name, values)
        if self.entry.rows is not None:
            rows = within(rows, self.entry.rows)
        return (
            rows
            if self.entry.unknown_row is None
            else np.where(rows < 0, self.entry.unknown_row, rows)
        )


class Crossed:
    """Row = hash of one value of each input together, mod `buckets`; the values of the last input
    vary fastest.
    """

    def __init__(
        self, names: Sequence[str], entry: CrossedIds, vocabularies: Mapping[str, Vocabulary]
    ) -> None:
        """Begins the cross of some inputs."""
        self._entry = entry
        self._keys = [
            Key(name, key, vocabularies) for name, key in zip(names, entry.keys, strict=True)
        ]
        self.rule = rule_of(IdentityIds(), vocabularies)

    def ids(self, columns: Sequence[Column], n: int) -> Column:
        """Returns the rows of n examples; one without a value of some input has none.

        Args:
          columns: of each input.
          n: examples in each of them.
        Raises:
          FeatureError: a column does not fit its input, or there are more than `COMBINATIONS_MAX`
            combinations.
        Source: TensorFlow 2.20, core/kernels/sparse_cross_op.cc, HashCrosser and ProductIterator
        (the rule).
        """
        sent = [key.packed(column, n) for key, column in zip(self._keys, columns, strict=True)]
        lengths = np.array([np.diff(offsets) for _, offsets in sent])
        # In floats: the product of a few long bags' lengths may not fit an int64.
        if np.prod(lengths.astype(np.float64), axis=0).sum() > COMBINATIONS_MAX:
            first, *others = (key.name for key in self._keys)
            raise FeatureError(
                first,
                f"crossed with {', '.join(others)} it has more than {COMBINATIONS_MAX} values",
            )
        counts = np.prod(lengths, axis=0, dtype=np.int64)
        offsets = offsets_of(counts)
        hashed = np.full(offsets[-1], self._entry.hash_key, np.uint64)
        behind = (
            counts  # combinations of the values of this input and those behind it, of each example
        )
        example = np.repeat(np.arange(n), counts)
        left = np.arange(offsets[-1]) - offsets[example]
        for key, (values, starts), own in zip(self._keys, sent, lengths, strict=True):
            numbers = key.numbers(values).view(np.uint64)
            if (lengths != 1).any():
                behind = behind // np.maximum(own, 1)
                place = left // behind[example]
                left = left - place * behind[example]
                numbers = numbers[starts[example] + place]
            hashed = concatenated(hashed, numbers)
        return Column((hashed % np.uint64(self._entry.buckets)).astype(np.int64), offsets)


class Joined:
    """Row = what a rule makes of one value of each input, written one after another with texts
    between them.
    """

    def __init__(
        self, names: Sequence[str], entry: JoinedIds, vocabularies: Mapping[str, Vocabulary]
    ) -> None:
        """Begins the string of some inputs."""
        self._keys = [
            Key(name, key, vocabularies) for name, key in zip(names, entry.keys, strict=True)
        ]
        self._template = "%s".join(text.replace("%", "%%") for text in entry.texts)
        self.rule = rule_of(entry.ids, vocabularies)

    def ids(self, columns: Sequence[Column], n: int) -> Column:
        """Returns the string of each of n examples; each column holds one value of each.

        Source: TensorFlow 2.20, core/kernels/string_join_op.cc and as_string_op.cc (the rule).
        """
        parts = [
            key.written(column.values).tolist()
            for key, column in zip(self._keys, columns, strict=True)
        ]
        found = np.empty(n, object)
        found[:] = [self._template % each for each in zip(*parts, strict=True)]
        return Column(found)
