"""Values that are drawn for an input, of which all of its features find rows.

Rules run forward only, as in a service: values of every kind are drawn, and those that have rows
are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.tables.id_values import Rows, Values

SentDtype = Literal["int64", "float32", "string"]

INT32_END = 1 << 31
WIDE_END = 1 << 40
"""Of integers that are drawn where the model takes 64 bits."""
_ORDINARY_VALUES = 1 << 9
_SPREAD_VALUES = 1 << 14
"""Drawn where hardly any of the ordinary ones has a row."""
_VALUES_AROUND = 1 << 10
"""Drawn around each constant, by which a rule may move ids."""
_ORDINARY_SHARE = 0.25
"""Of the ordinary values; if fewer have rows, others are drawn."""
_FLOAT_END = 1 << 23
"""Integers up to here, and halves of them, are exact in float32."""


@dataclass(frozen=True)
class Reader:
    """What one feature makes of the values of an input.

    Attributes:
      find: returns [m] int64 rows of [m] values, -1 for those that have none.
      rows: how many rows its table has; None: any.
      keys: those of the vocabularies that it looks values up in, [k] each.
      boundaries: those of its buckets.
      constants: integers that it computes with.
    """

    find: Callable[[Values], Rows]
    rows: int | None = None
    keys: tuple[NDArray[Any], ...] = ()
    boundaries: tuple[float, ...] = ()
    constants: tuple[int, ...] = ()

    def rows_or_none(self, values: Values) -> Rows:
        """Returns [m] int64 rows, -1 also where the feature rejects a value."""
        return rows_or_none(self.find, values)


def rows_or_none(find: Callable[..., Rows], *values: Values) -> Rows:
    """Returns [m] int64 rows of [m] values of each input, -1 where the model's operations fail."""
    if not values[0].size:
        return np.empty(0, np.int64)
    try:
        return find(*values)
    except FeatureError:
        if values[0].size == 1:
            return np.array([-1])
    middle = values[0].size // 2
    first = rows_or_none(find, *(column[:middle] for column in values))
    second = rows_or_none(find, *(column[middle:] for column in values))
    return np.concatenate([first, second])


@dataclass(frozen=True)
class ValueSource:
    """Draws values of one input.

    Attributes:
      dtype: of the values.
      readers: the features that read the input.
      end: the limit of integers.
      random: the generator.
    """

    dtype: SentDtype
    readers: Sequence[Reader]
    end: int
    random: np.random.Generator

    def known(self, count: int) -> Values:
        """Returns [count] values of which every reader finds a row, keys and others in turn; values
        of any kind if it finds none.
        """
        keys = self._with_rows(self.keys())
        ordinary = self.ordinary()
        others = self._with_rows(ordinary)
        if not keys.size and others.size < _ORDINARY_SHARE * ordinary.size:
            others = np.concatenate([others, self._with_rows(self._spread())])
        if not others.size:
            others = keys if keys.size else ordinary
        values = self.random.choice(others, count)
        if keys.size:
            values[::2] = self.random.choice(keys, values[::2].size)
        return values

    def keys(self) -> Values:
        """Returns [k] keys that readers look up, or numbers in all of their buckets."""
        listed = [keys for reader in self.readers for keys in reader.keys]
        keys = [keys for keys in listed if keys.dtype == self._array_dtype]
        for reader in self.readers:
            boundaries = [edge for edge in reader.boundaries if abs(edge) < _FLOAT_END]
            if boundaries and self.dtype != "string":
                ends = min(boundaries) - 1, max(boundaries) + 1
                numbers = self.random.uniform(*ends, _ORDINARY_VALUES)
                keys.append(
                    (np.floor(numbers) if self.dtype == "int64" else numbers).astype(self.dtype)
                )
        return np.concatenate(keys) if keys else np.empty(0, self._array_dtype)

    def ordinary(self) -> Values:
        """Returns [m] values as most models take them: integers, texts of them, numbers."""
        rows = min((reader.rows for reader in self.readers if reader.rows is not None), default=0)
        small = self.random.integers(0, max(1, min(rows or self.end, self.end)), _ORDINARY_VALUES)
        if self.dtype == "float32":
            scales = 10.0 ** self.random.integers(-1, 5, _ORDINARY_VALUES)
            drawn = self.random.standard_normal(_ORDINARY_VALUES) * scales
            within_table = small + self.random.random(_ORDINARY_VALUES)
            return np.concatenate([drawn, within_table]).astype(np.float32)
        large = self.random.integers(0, self.end, _ORDINARY_VALUES)
        integers = np.concatenate([small, large])
        return as_texts(integers) if self.dtype == "string" else integers

    def unknown(self) -> Values:
        """Returns a few values that every reader takes, and that some vocabulary or table lacks."""
        keys = [listed for reader in self.readers for listed in reader.keys]
        if keys:
            candidates = self._unlike(np.concatenate(keys))
        else:
            last = max(reader.rows for reader in self.readers if reader.rows is not None)
            candidates = np.array([last, -1, last + 5, -last - 1])
        if self.dtype == "string" and candidates.dtype != object:
            candidates = as_texts(candidates)
        is_taken = [[_takes(reader, value) for value in candidates] for reader in self.readers]
        candidates = candidates[np.all(is_taken, axis=0)]
        lacks = [reader.rows_or_none(candidates) < 0 for reader in self.readers]
        return candidates if keys else candidates[np.any(lacks, axis=0)]

    @property
    def _array_dtype(self) -> np.dtype[Any]:
        return np.dtype(object if self.dtype == "string" else self.dtype)

    def _with_rows(self, values: Values) -> Values:
        """Returns the values of which every reader finds a row."""
        for reader in self.readers:
            values = values[reader.rows_or_none(values) >= 0]
        return values

    def _spread(self) -> Values:
        """Returns [m] values of every size and either sign, some of them around constants."""
        if self.dtype == "string":
            return np.empty(0, object)
        end = min(self.end, _FLOAT_END) if self.dtype == "float32" else self.end
        reaches = [reach for reach in (1 << 10, 1 << 16, 1 << 23, INT32_END, end) if reach <= end]
        integers = [self.random.integers(-reach, reach, _SPREAD_VALUES) for reach in reaches]
        for reader in self.readers:
            rows = reader.rows or 1
            centers = {sign * constant for constant in reader.constants for sign in (-1, 1)}
            integers += [
                center + self.random.integers(-rows, rows, _VALUES_AROUND)
                for center in sorted(centers)
                if abs(center) + rows < end
            ]
        spread = np.concatenate(integers)
        if self.dtype == "float32":
            return (spread + self.random.random(spread.size) / 2).astype(np.float32)
        return spread

    def _unlike(self, keys: Values) -> Values:
        """Returns values that are none of the keys."""
        if keys.dtype == object:
            words = ["unknown", "UNKNOWN 2", "?"]
            return np.array([word for word in words if word not in set(keys.tolist())], object)
        last = int(keys.max(initial=0))
        return np.array([last + 1, last + 1000])


def _takes(reader: Reader, value: Any) -> bool:
    """Returns whether a reader takes a value, whether it has a row or not."""
    values = np.array([value], object if isinstance(value, str) else np.int64)
    try:
        reader.find(values)
    except FeatureError:
        return False
    return True


def as_texts(values: Values) -> Values:
    """Returns [m] object holding str."""
    return values.astype(str).astype(object)
