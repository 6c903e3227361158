"""Random values of an input, for which all of its features find rows.

Rules only run forward, as in a service: values of every kind are drawn, and those without rows are
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.tables.id_values import Rows, Values
from export.verify.accepted_groups import accepted_groups

SentDtype = Literal["int64", "float32", "string"]

INT32_END = 1 << 31
"""The limit of integers where the model takes 32 bits."""
INT64_END = 1 << 63
"""The limit of integers that requests can send."""
WIDE_END = 1 << 40
"""The limit of integers that are drawn where the model takes 64 bits."""
_ORDINARY_VALUES = 1 << 9
"""The number of ordinary values that are drawn."""
_SPREAD_VALUES = 1 << 14
"""The number of values of each magnitude that are drawn where few ordinary values have rows."""
_VALUES_AROUND = 1 << 10
"""The number of values that are drawn around each constant, by which a rule may move ids."""
_ORDINARY_SHARE = 0.25
"""The share of ordinary values with rows below which values of every magnitude are drawn, too."""
_FLOAT_END = 1 << 23
"""The limit up to which integers, and halves of them, are exact in float32."""


@dataclass(frozen=True)
class Reader:
    """The way in which one feature finds rows of the values of an input.

    Attributes:
      find: Returns [m] int64 rows of [m] values, -1 for values without a row.
      rows: The number of rows of its table; None: any.
      keys: [k] keys of each vocabulary in which it looks values up.
      boundaries: The boundaries of its buckets.
      constants: The integers that it computes with.
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
    rows = np.full(values[0].size, -1, np.int64)

    def find_group(group: slice) -> Rows | None:
        try:
            return find(*(column[group] for column in values))
        except FeatureError:
            return None

    for group, group_rows in accepted_groups(rows.size, find_group):
        rows[group] = group_rows
    return rows


@dataclass(frozen=True)
class ValueSource:
    """Draws values of one input.

    Attributes:
      dtype: The type of the values.
      readers: The features that read the input.
      end: The limit of integers.
      random: The generator of random numbers.
    """

    dtype: SentDtype
    readers: Sequence[Reader]
    end: int
    random: np.random.Generator

    def known(self, count: int) -> Values:
        """Returns [count] values for which every reader finds a row: every second one is a key,
        where there are keys. Without any such value, they are ordinary values.
        """
        keys = self._with_rows(self.keys())
        ordinary = self.ordinary()
        with_rows = self._with_rows(ordinary)
        if not keys.size and with_rows.size < _ORDINARY_SHARE * ordinary.size:
            with_rows = np.concatenate([with_rows, self._with_rows(self._spread())])
        if not with_rows.size:
            with_rows = keys if keys.size else ordinary
        values = self.random.choice(with_rows, count)
        if keys.size:
            values[::2] = self.random.choice(keys, values[::2].size)
        return values

    def keys(self) -> Values:
        """Returns [k] keys that readers look up, or numbers in all of their buckets."""
        columns = [
            keys
            for reader in self.readers
            for keys in reader.keys
            if keys.dtype == self._array_dtype
        ]
        for reader in self.readers:
            boundaries = [boundary for boundary in reader.boundaries if abs(boundary) < _FLOAT_END]
            if boundaries and self.dtype != "string":
                # One more on either side reaches the first and the last bucket.
                low = min(boundaries) - 1
                high = max(boundaries) + 1
                numbers = self.random.uniform(low, high, _ORDINARY_VALUES)
                if self.dtype == "int64":
                    numbers = np.floor(numbers)
                columns.append(numbers.astype(self.dtype))
        if not columns:
            return np.empty(0, self._array_dtype)
        return np.concatenate(columns)

    def ordinary(self) -> Values:
        """Returns [m] values as most models take them: integers, texts of them, numbers."""
        rows = min((reader.rows for reader in self.readers if reader.rows is not None), default=0)
        small_end = min(rows or self.end, self.end)
        small = self.random.integers(0, max(1, small_end), _ORDINARY_VALUES)
        if self.dtype == "float32":
            scales = 10.0 ** self.random.integers(-1, 5, _ORDINARY_VALUES)
            around_zero = self.random.standard_normal(_ORDINARY_VALUES) * scales
            within_table = small + self.random.random(_ORDINARY_VALUES)
            return np.concatenate([around_zero, within_table]).astype(np.float32)
        large = self.random.integers(0, self.end, _ORDINARY_VALUES)
        integers = np.concatenate([small, large])
        if self.dtype == "string":
            return as_texts(integers)
        return integers

    def unknown(self) -> Values:
        """Returns a few values that every reader takes, and that some vocabulary or table lacks."""
        keys = [column for reader in self.readers for column in reader.keys]
        if keys:
            candidates = self._unlike(np.concatenate(keys))
        else:
            row_count = max(reader.rows for reader in self.readers if reader.rows is not None)
            # Just behind the table and before it, and where -1 counts from the end, before that.
            candidates = np.array([row_count, -1, row_count + 5, -row_count - 1])
        if self.dtype == "string" and candidates.dtype != object:
            candidates = as_texts(candidates)
        is_taken = [[_takes(reader, value) for value in candidates] for reader in self.readers]
        candidates = candidates[np.all(is_taken, axis=0)]
        if keys:
            # A value that is no key may have a row, such as an out-of-vocabulary bucket.
            return candidates
        lacks_row = [reader.rows_or_none(candidates) < 0 for reader in self.readers]
        return candidates[np.any(lacks_row, axis=0)]

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
        end = self.end
        if self.dtype == "float32":
            end = min(end, _FLOAT_END)
        magnitudes = [1 << 10, 1 << 16, 1 << 23, INT32_END, end]
        columns = [
            self.random.integers(-magnitude, magnitude, _SPREAD_VALUES)
            for magnitude in magnitudes
            if magnitude <= end
        ]
        for reader in self.readers:
            rows = reader.rows or 1
            # A rule may add a constant or subtract it. Sorted, so that every run draws the same.
            centers = {sign * constant for constant in reader.constants for sign in (-1, 1)}
            for center in sorted(centers):
                if abs(center) + rows < end:
                    offsets = self.random.integers(-rows, rows, _VALUES_AROUND)
                    columns.append(center + offsets)
        spread = np.concatenate(columns)
        if self.dtype == "float32":
            return (spread + self.random.random(spread.size) / 2).astype(np.float32)
        return spread

    def _unlike(self, keys: Values) -> Values:
        """Returns values that are none of the keys."""
        if keys.dtype == object:
            words = ["unknown", "UNKNOWN 2", "?"]
            return np.array([word for word in words if word not in set(keys.tolist())], object)
        last = int(keys.max(initial=0))
        end = INT64_END
        if last < self.end <= INT32_END:
            end = INT32_END
        if last + 1000 < end:
            return np.array([last + 1, last + 1000])
        # Of as many integers and two more, the keys cannot hold all.
        return np.setdiff1d(np.arange(keys.size + 2), keys)[:2]


def _takes(reader: Reader, value: Any) -> bool:
    """Returns whether a reader takes a value, whether it has a row or not."""
    dtype = object if isinstance(value, str) else np.int64
    values = np.array([value], dtype)
    try:
        reader.find(values)
    except FeatureError:
        return False
    return True


def as_texts(values: Values) -> Values:
    """Returns [m] object holding str."""
    return values.astype(str).astype(object)
