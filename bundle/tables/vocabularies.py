"""Vocabularies: keys in the order of their rows, and the position of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.storage import arrow
from bundle.tables.id_values import Rows, Values, integers, known_kind, strings

_SEARCHED_MAX = 200
"""Keys that are found by a binary search each; of more, all go on from their bucket's start, a step
at a time.
"""


class IntegerKeys:
    """Positions of distinct int64 keys; keys that follow one another take no memory but
    a number.
    """

    dtype = "int64"

    def __init__(self, keys: NDArray[np.int64]) -> None:
        """Takes [size] int64 distinct keys.

        Raises:
          FormatError: a key comes twice; names it.
        """
        self.size = keys.size
        self._first = int(keys[0]) if keys.size else 0
        self._order: Rows | None = None
        # In Python's integers: the span of int64 keys may not fit an int64.
        consecutive = keys.size > 0 and int(keys[-1]) - self._first == keys.size - 1
        if not (consecutive and bool((np.diff(keys) == 1).all())):
            ascending = bool((keys[1:] > keys[:-1]).all())
            self._order = None if ascending else np.argsort(keys, kind="stable").astype(np.int64)
            self._sorted = keys if self._order is None else keys[self._order]
            self._consecutive = False
            twice = self._sorted[1:][self._sorted[1:] == self._sorted[:-1]]
            if twice.size:
                raise FormatError(f"id {twice[0]} comes twice; ids must be distinct")
            span = int(self._sorted[-1]) - int(self._sorted[0]) if keys.size else 0
            self._shift = np.uint64(max(0, span.bit_length() - (keys.size // 8).bit_length()))
            buckets = np.arange((span >> int(self._shift)) + 1, dtype=np.uint64) << self._shift
            self._starts = np.searchsorted(self._sorted, buckets.view(np.int64) + self._sorted[:1])
            longest = int(np.diff(self._starts, append=keys.size).max(initial=0))
            self._steps = [1 << bit for bit in reversed(range(longest.bit_length()))]
        else:
            self._consecutive = True

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is
        no integer.
        """
        wanted = integers(feature, values)
        if self._consecutive:
            inside = (wanted >= self._first) & (wanted <= self._first + self.size - 1)
            return np.where(inside, np.where(inside, wanted, self._first) - self._first, -1)
        if not self.size:
            return np.full(wanted.size, -1, np.int64)
        if wanted.size <= _SEARCHED_MAX:
            place = np.searchsorted(self._sorted, wanted)
        else:
            above = np.clip(wanted, self._sorted[0], self._sorted[-1]) - self._sorted[0]
            place = self._starts.take((above.view(np.uint64) >> self._shift).view(np.int64))
            for step in self._steps:
                place += step * (self._sorted.take(place + (step - 1), mode="clip") < wanted)
        position = place if self._order is None else self._order.take(place, mode="clip")
        return np.where(self._sorted.take(place, mode="clip") == wanted, position, -1)


class StringKeys:
    """Positions of distinct strings, by a dictionary."""

    dtype = "string"

    def __init__(self, keys: Sequence[str]) -> None:
        """Takes distinct keys.

        Raises:
          FormatError: a key comes twice; names it.
        """
        self.size = len(keys)
        self._positions = dict(zip(keys, range(len(keys)), strict=True))
        if len(self._positions) != len(keys):
            twice = next(
                key for position, key in enumerate(keys) if self._positions[key] != position
            )
            raise FormatError(f"id {twice!r} comes twice; ids must be distinct")

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is
        no string.
        """
        get = self._positions.get
        return np.array([get(value, -1) for value in strings(feature, values).tolist()], np.int64)


class Vocabulary:
    """The keys of a vocabulary in the order of their rows."""

    def __init__(self, keys: IntegerKeys | StringKeys) -> None:
        self._keys = keys
        self.size = keys.size
        self.dtype = keys.dtype

    @staticmethod
    def open(path: Path) -> Vocabulary:
        """Opens an Arrow IPC file with the one column `key`, int64 or string.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no such file, or a key is null or comes twice.
        """
        import pyarrow as pa

        keys = arrow.column(arrow.open_mapped(path), "key", f"vocabulary {path.name!r}")
        if keys.null_count:
            raise FormatError(
                f"vocabulary {path.name!r} holds {keys.null_count} nulls; every key must be given"
            )
        if keys.type == pa.int64():
            return Vocabulary(IntegerKeys(arrow.values(keys)))
        if keys.type in (pa.string(), pa.large_string()):
            return Vocabulary(StringKeys(keys.to_pylist()))
        raise FormatError(
            f"vocabulary {path.name!r} has keys of type {keys.type}; int64 or string was expected"
        )

    def find(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions of keys, -1 where there is none; raises FeatureError for what
        is no key.
        """
        return self._keys.positions(feature, values)


def write_vocabulary(path: Path, keys: Values) -> None:
    """Writes a vocabulary: [size] int64 or object holding str, in the order of the rows.

    Raises:
      FormatError: a key comes twice.
      FeatureError: a value is no key.
    """
    import pyarrow as pa

    checked = known_kind("key", keys)
    if checked.dtype == np.int64:
        IntegerKeys(checked)
    else:
        StringKeys(checked.tolist())
    arrow.write(
        path,
        pa.table(
            {
                "key": pa.array(
                    checked, pa.int64() if checked.dtype == np.int64 else pa.large_string()
                )
            }
        ),
    )
