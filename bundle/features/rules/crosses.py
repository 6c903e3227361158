"""Several inputs -> rows: every combination of their values hashed together, as TensorFlow's crossed columns do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.columns import Column, Offsets, checked_together
from bundle.features.rules import fingerprints
from bundle.features.rules.ids import Buckets, Rule, hashes
from bundle.features.rules.ids import resolve_all as rows_of_all
from bundle.features.rules.opened import rule_of
from bundle.features.rules.texts import Changed, Text
from bundle.format.id_rules import CrossedIds, CrossKey, HashIds, TextIds
from bundle.tables.id_values import Rows, Values, integers, strings, without
from bundle.tables.vocabularies import Vocabulary

COMBINATIONS_MAX = 1 << 20
"""Combinations made at a time: a few long bags have a great many."""
_TOGETHER = 1 << 15
"""Combinations hashed at a time, so that what is made of them stays in the cache."""


class Crossed:
    """Row = hash of one value of each input together, mod `buckets`; the values of the last input vary fastest.

    Attributes:
      names: of the inputs.
      rows: of the table.
      page: what the manifest says.
      keys: what makes a number of a value of each input.
    """

    def __init__(
        self, names: Sequence[str], rows: int, page: CrossedIds, vocabularies: Mapping[str, Vocabulary]
    ) -> None:
        self.names, self.rows, self.page = names, rows, page
        self.keys = [key_rule(name, key, vocabularies) for name, key in zip(names, page.keys, strict=True)]

    def resolve(self, columns: Sequence[Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the values of n examples.

        Args:
          columns: of each input.
          n: examples in each of them.
        Returns:
          [m] int64 rows, and [n + 1] int64 offsets: an example without a value of some input has no row.
        Raises:
          FeatureError: a column does not fit its input, or there are more than `COMBINATIONS_MAX` combinations.
        """
        (found,) = resolve_all([self], [columns], n)
        if found is None:
            first, *others = self.names
            raise FeatureError(first, f"crossed with {', '.join(others)} it has more than {COMBINATIONS_MAX} values")
        return found


def resolve_all(
    crosses: Sequence[Crossed], columns: Sequence[Sequence[Column]], n: int
) -> list[tuple[Rows, Offsets] | None]:
    """Returns what `Crossed.resolve` does of many crosses, made in one go for those of equally many inputs.

    Args:
      columns: of each input, by cross.
    Returns:
      None of a cross that has more than `COMBINATIONS_MAX` combinations, with those that were made before it.
    Raises:
      FeatureError: a column does not fit its input.
    """
    found: list[tuple[Rows, Offsets] | None] = [None] * len(crosses)
    left = COMBINATIONS_MAX
    for count in {len(cross.names) for cross in crosses}:
        places = [place for place, cross in enumerate(crosses) if len(cross.names) == count]
        alike, given = [crosses[place] for place in places], [columns[place] for place in places]
        sent = [_packed(alike, given, key, n) for key in range(count)]
        lengths = np.diff(np.array([[offsets for _, offsets in each] for each in sent]), axis=2)
        # In floats: the product of a few long bags' lengths may not fit an int64.
        total = np.cumsum(np.prod(lengths.astype(np.float64), axis=0).sum(axis=1))
        fitting = int(np.searchsorted(total, left, side="right"))
        left -= int(total[fitting - 1]) if fitting else 0
        for part in _parts(total[:fitting]):
            made = _joined(alike[part], [each[part] for each in sent], lengths[:, part])
            for place, each in zip(places[part], made, strict=True):
                found[place] = each
    return found


def _parts(total: NDArray[np.float64]) -> list[slice]:
    """Cuts crosses, by their combinations with those before them, into parts of about `_TOGETHER`."""
    if not total.size or total[-1] <= _TOGETHER:
        return [slice(total.size)] if total.size else []
    ends = [0, *(np.flatnonzero(np.diff(total // _TOGETHER)) + 1).tolist(), total.size]
    return [slice(first, end) for first, end in pairwise(ends)]


def _packed(
    crosses: Sequence[Crossed], columns: Sequence[Sequence[Column]], key: int, n: int
) -> list[tuple[Values, Offsets]]:
    """Returns values and offsets of input number `key` of each cross, without those that only fill up."""
    sent = [each[key] for each in columns]
    offsets = checked_together([cross.names[key] for cross in crosses], sent, n)
    found = []
    for cross, column, starts in zip(crosses, sent, offsets, strict=True):
        padding = cross.page.keys[key].padding
        found.append((column.values, starts) if padding is None else without(padding, column.values, starts))
    return found


def _joined(
    crosses: Sequence[Crossed], sent: Sequence[Sequence[tuple[Values, Offsets]]], lengths: NDArray[np.int64]
) -> list[tuple[Rows, Offsets]]:
    """Hashes every combination of values of the same example.

    Args:
      crosses: of equally many inputs.
      sent: of each input, of each cross, values and offsets.
      lengths: [inputs, crosses, n] int64 values of each example.
    Source: TensorFlow 2.20, core/kernels/sparse_cross_op.cc, HashCrosser and ProductIterator (the rule).
    """
    n = lengths.shape[2]
    places: list[NDArray[np.int64] | slice] = [slice(None)] * len(lengths)
    counts = np.prod(lengths, axis=0, dtype=np.int64).reshape(-1)  # the examples of all crosses, one after another
    offsets = np.concatenate([[0], np.cumsum(counts)])
    bounds = offsets[::n] if n else np.zeros(len(crosses) + 1, np.int64)
    sizes = np.diff(bounds)
    if (lengths != 1).any():  # else each example's value is where the example is
        example = np.repeat(np.arange(counts.size), counts)
        left = np.arange(offsets[-1]) - offsets[example]
        for key, own in reversed(list(enumerate(lengths.reshape(len(lengths), -1)))):
            length = own[example]
            places[key] = (np.cumsum(own) - own)[example] + left % length
            left //= length
    hashed = np.array([cross.page.hash_key for cross in crosses], np.uint64).repeat(sizes)
    for key, (each, place) in enumerate(zip(sent, places, strict=True)):
        hashed = fingerprints.joined(hashed, _numbers(crosses, key, [values for values, _ in each])[place])
    rows = (hashed % np.array([cross.page.buckets for cross in crosses], np.uint64).repeat(sizes)).astype(np.int64)
    rows[rows >= np.array([cross.rows for cross in crosses]).repeat(sizes)] = -1
    return [
        (rows[first:end], offsets[number * n : (number + 1) * n + 1] - first)
        for number, (first, end) in enumerate(zip(bounds.tolist(), bounds[1:].tolist(), strict=False))
    ]


def _numbers(crosses: Sequence[Crossed], key: int, values: Sequence[Values]) -> NDArray[np.uint64]:
    """Returns what is hashed of each value of input number `key` of each cross, end to end."""
    found = rows_of_all([cross.keys[key] for cross in crosses], values)
    for place, cross in enumerate(crosses):
        otherwise = cross.page.keys[key].unknown_row
        if otherwise is not None:
            found[place] = np.where(found[place] < 0, np.int64(otherwise), found[place])
    return np.concatenate(found).view(np.uint64)


class _Integers:
    """An integer as it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def resolve(self, values: Values) -> Rows:
        return integers(self._name, values)

    @staticmethod
    def resolve_all(rules: Sequence[_Integers], columns: Sequence[Values]) -> list[Rows]:
        return [integers(rule._name, values) for rule, values in zip(rules, columns, strict=True)]


class _Strings:
    """A string's hash."""

    alike = ()

    def __init__(self, name: str) -> None:
        self._name = name

    def resolve(self, values: Values) -> Rows:
        return hashes(self._name, strings(self._name, values)).view(np.int64)


def changed_text(name: str, key: CrossKey) -> Text | None:
    """Returns what changes the texts of one of the inputs; None: nothing does."""
    return Text(name, TextIds(steps=key.steps, ids=HashIds(buckets=1))) if key.steps else None


def key_rule(name: str, key: CrossKey, vocabularies: Mapping[str, Vocabulary]) -> Rule:
    """Returns what makes a number of a value of one of the inputs."""
    changed = changed_text(name, key)
    if changed is not None:
        return Changed(changed, key_rule(name, key.model_copy(update={"steps": ()}), vocabularies))
    if key.boundaries is not None:
        return Buckets(name, len(key.boundaries) + 1, key.boundaries)
    if key.ids is None:
        return _Strings(name) if key.dtype == "string" else _Integers(name)
    return rule_of(name, key.rows, key.ids, vocabularies)
