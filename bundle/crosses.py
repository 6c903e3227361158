"""Several inputs -> rows: every combination of their values hashed together, as TensorFlow's crossed columns do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bundle import fingerprints
from bundle.columns import Offsets
from bundle.errors import FeatureError
from bundle.feature_pages import CrossedIds, CrossKey, VocabularyIds
from bundle.id_values import Rows, Values, integers, numbers, strings, without
from bundle.ids import Identity, Listed, Rule, hashes, within
from bundle.vocabularies import Vocabulary

COMBINATIONS_MAX = 1 << 20
"""Combinations made for one feature of one call: a few long bags have a great many."""


class Crossed:
    """Row = hash of one value of each input together, mod `buckets`; the values of the last input vary fastest."""

    def __init__(
        self, names: Sequence[str], rows: int, page: CrossedIds, vocabularies: Mapping[str, Vocabulary]
    ) -> None:
        self._names, self._rows, self._page = names, rows, page
        self._rules = [_rule(name, key, vocabularies) for name, key in zip(names, page.keys, strict=True)]

    def resolve(self, columns: Sequence[tuple[Values, Offsets]]) -> tuple[Rows, Offsets]:
        """Resolves the values of n examples.

        Args:
          columns: of each input, its values and [n + 1] int64 offsets.
        Returns:
          [m] int64 rows, and [n + 1] int64 offsets: an example without a value of some input has no row.
        Raises:
          FeatureError: a value does not fit its input, or there are more than `COMBINATIONS_MAX` combinations.
        Source: TensorFlow 2.20, core/kernels/sparse_cross_op.cc, HashCrosser and ProductIterator (the rule).
        """
        columns = [
            without(key.padding, *column) if key.padding is not None else column
            for key, column in zip(self._page.keys, columns, strict=True)
        ]
        lengths = [np.diff(offsets) for _, offsets in columns]
        # In floats: the product of a few long bags' lengths may not fit an int64.
        if np.prod(np.array(lengths, np.float64), axis=0).sum() > COMBINATIONS_MAX:
            raise FeatureError(
                self._names[0], f"crossed with {', '.join(self._names[1:])} it has more than {COMBINATIONS_MAX} values"
            )
        counts = np.prod(np.array(lengths), axis=0, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        example = np.repeat(np.arange(counts.size), counts)
        left = np.arange(offsets[-1]) - offsets[example]
        places: list[NDArray[np.int64]] = []
        for length, (_, starts) in zip(reversed(lengths), reversed(columns), strict=True):
            places.append(starts[example] + left % length[example])
            left //= length[example]
        found = np.full(example.size, self._page.hash_key, np.uint64)
        for number, ((values, _), place) in enumerate(zip(columns, reversed(places), strict=True)):
            found = fingerprints.joined(found, self._hashed(number, values)[place])
        return within((found % np.uint64(self._page.buckets)).astype(np.int64), self._rows), offsets

    def _hashed(self, number: int, values: Values) -> NDArray[np.uint64]:
        name, key, rule = self._names[number], self._page.keys[number], self._rules[number]
        if rule is not None:
            rows, otherwise = rule.resolve(values), -1 if key.unknown_row is None else key.unknown_row
            return np.where(rows < 0, np.int64(otherwise), rows).view(np.uint64)
        if key.boundaries is not None:
            boundaries = np.asarray(key.boundaries, np.float32)
            return np.searchsorted(boundaries, numbers(name, values), side="right").astype(np.uint64)
        if key.dtype == "string":
            return hashes(name, strings(name, values))
        return integers(name, values).view(np.uint64)


def listed(name: str, rows: int, page: VocabularyIds, vocabularies: Mapping[str, Vocabulary]) -> Listed:
    """Returns the rule of a vocabulary's page; raises KeyError for a vocabulary that is not open."""
    told = page.model_dump(exclude={"kind", "vocabulary"})
    return Listed(name, rows, vocabularies[page.vocabulary], **told)


def _rule(name: str, key: CrossKey, vocabularies: Mapping[str, Vocabulary]) -> Rule | None:
    if key.ids is None or key.rows is None:
        return None
    if isinstance(key.ids, VocabularyIds):
        return listed(name, key.rows, key.ids, vocabularies)
    return Identity(name, key.rows)
