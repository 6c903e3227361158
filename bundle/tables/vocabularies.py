"""Vocabularies: keys in the order of their rows, and the position of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.fingerprints import column_fingerprints, fingerprints
from bundle.storage import arrow
from bundle.tables.id_values import Rows, Values, integers, known_kind, strings
from bundle.text_arrays import text_array

DICTIONARY_MAX = 100_000
"""The maximum number of strings that a dictionary holds. A dictionary is faster, but takes 150
bytes per string in every process.
"""
_SEARCHED_MAX = 200
"""The maximum number of keys that are found by a binary search each. More keys are searched
together, from the start of their buckets, step by step.
"""


class Keys(Protocol):
    """Distinct keys of one kind, and their positions."""

    size: int
    dtype: str

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns the position of each value; see `Vocabulary.find`."""


class IntegerKeys:
    """Positions of distinct int64 keys. Consecutive keys take no memory but a number."""

    dtype = "int64"

    def __init__(self, keys: NDArray[np.int64]) -> None:
        """Takes [size] int64 distinct keys.

        Raises:
          FormatError: A key comes twice; names it.
        """
        self.size = keys.size
        self._first = 0
        if keys.size:
            self._first = int(keys[0])
        self._consecutive = _are_consecutive(keys)
        if self._consecutive:
            return

        # The order takes memory: there is none if the keys ascend already.
        self._order: Rows | None = None
        self._sorted = keys
        if not (keys[1:] > keys[:-1]).all():
            self._order = np.argsort(keys, kind="stable")
            self._sorted = keys[self._order]
        repeated = self._sorted[1:][self._sorted[1:] == self._sorted[:-1]]
        if repeated.size:
            raise FormatError(f"id {repeated[0]} comes twice; ids must be distinct")

        # The leading bits of a key's distance from the smallest one are its bucket.
        span = 0
        if keys.size:
            span = int(self._sorted[-1]) - int(self._sorted[0])
        self._shift = np.uint64(max(0, span.bit_length() - (keys.size // 8).bit_length()))
        buckets = np.arange((span >> int(self._shift)) + 1, dtype=np.uint64) << self._shift
        first_keys = buckets.view(np.int64) + self._sorted[:1]
        self._starts = np.searchsorted(self._sorted, first_keys)
        longest = int(np.diff(self._starts, append=keys.size).max(initial=0))
        self._steps = [1 << bit for bit in reversed(range(longest.bit_length()))]

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is
        no integer.
        """
        ids = integers(feature, values)
        if self._consecutive:
            is_held = (ids >= self._first) & (ids <= self._first + self.size - 1)
            # Other ids are replaced before the subtraction, which could overflow.
            keys = np.where(is_held, ids, self._first)
            return np.where(is_held, keys - self._first, -1)
        if not self.size:
            return np.full(ids.size, -1, np.int64)
        indices = self._search(ids)
        positions = indices
        if self._order is not None:
            positions = self._order.take(indices, mode="clip")
        return np.where(self._sorted.take(indices, mode="clip") == ids, positions, -1)

    def _search(self, ids: NDArray[np.int64]) -> Rows:
        """Returns where each key is in `_sorted`, or would be."""
        if ids.size <= _SEARCHED_MAX:
            return self._sorted.searchsorted(ids)
        smallest = self._sorted[0]
        distance = np.clip(ids, smallest, self._sorted[-1]) - smallest
        bucket = (distance.view(np.uint64) >> self._shift).view(np.int64)
        indices: Rows = self._starts.take(bucket)
        # A binary search in all buckets at once.
        for step in self._steps:
            indices += step * (self._sorted.take(indices + (step - 1), mode="clip") < ids)
        return indices


class StringKeys:
    """Positions of distinct strings, by a dictionary."""

    dtype = "string"

    def __init__(self, keys: Sequence[str]) -> None:
        """Takes distinct keys.

        Raises:
          FormatError: A key comes twice; names it.
        """
        self.size = len(keys)
        self._positions = {key: position for position, key in enumerate(keys)}
        if len(self._positions) != len(keys):
            repeated = (
                key for position, key in enumerate(keys) if self._positions[key] != position
            )
            raise _repeated(next(repeated))

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is
        no string.
        """
        texts = strings(feature, values).tolist()
        positions = map(self._positions.get, texts, repeat(-1))
        return np.fromiter(positions, np.int64, len(texts))


class MappedStringKeys:
    """Positions of many distinct strings, by their fingerprints: 16 bytes of memory per string.

    The strings themselves stay in the mapped file. The string at the position that a fingerprint
    leads to is compared with the sent one.
    """

    dtype = "string"

    def __init__(self, keys: Any) -> None:
        """Takes a `pyarrow.LargeStringArray` of distinct keys without nulls.

        Raises:
          FormatError: A key comes twice; names it.
        """
        self.size = len(keys)
        self._keys = keys
        hashes = column_fingerprints(keys)
        self._order: Rows = np.argsort(hashes, kind="stable")
        self._fingerprints = hashes[self._order]
        self._ambiguous = self._find_ambiguous()

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is
        no string.
        """
        ids = strings(feature, values)
        texts = ids.tolist()
        try:
            hashes = fingerprints(ids)
        except UnicodeEncodeError:
            # What a caller sends may be no Unicode text; no key is equal to it.
            encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
            hashes = fingerprints(text_array(encoded))
        indices = np.searchsorted(self._fingerprints, hashes)
        positions = self._order.take(indices, mode="clip")
        pairs = zip(texts, self._texts_at(positions), strict=True)
        is_key = np.fromiter((text == key for text, key in pairs), np.bool_, len(texts))
        positions[~is_key] = -1
        # The search leads to one of the keys that share a fingerprint, which may be another.
        if self._ambiguous:
            for number in np.flatnonzero(~is_key).tolist():
                positions[number] = self._ambiguous.get(texts[number], -1)
        return positions

    def _texts_at(self, positions: Rows) -> list[str]:
        import pyarrow as pa

        texts: list[str] = self._keys.take(pa.array(positions)).to_pylist()
        return texts

    def _find_ambiguous(self) -> dict[str, int]:
        """Returns the positions of keys whose fingerprint another key has, too."""
        shared = self._fingerprints[1:] == self._fingerprints[:-1]
        if not shared.any():
            return {}
        positions = self._order[np.append(shared, False) | np.append(False, shared)]
        ambiguous: dict[str, int] = {}
        for text, position in zip(self._texts_at(positions), positions.tolist(), strict=True):
            if text in ambiguous:
                raise _repeated(text)
            ambiguous[text] = position
        return ambiguous


class Vocabulary:
    """The keys of a vocabulary in the order of their rows."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.size = keys.size
        self.dtype = keys.dtype

    @staticmethod
    def open(path: Path) -> Vocabulary:
        """Opens an Arrow IPC file with the one column `key`, int64 or string.

        Raises:
          DigestMismatch: The file is missing.
          FormatError: It is no such file, or a key is null or comes twice.
        """
        import pyarrow as pa

        keys = arrow.column(arrow.open_mapped(path), "key", f"vocabulary {path.name!r}")
        if keys.null_count:
            raise FormatError(
                f"vocabulary {path.name!r} holds {keys.null_count} nulls; every key must be given"
            )
        if keys.type not in (pa.int64(), pa.string(), pa.large_string()):
            raise FormatError(
                f"vocabulary {path.name!r} has keys of type {keys.type}; int64 or string was "
                "expected"
            )
        return Vocabulary(index_keys(keys))

    def find(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions of keys, -1 where there is none; raises FeatureError for what
        is no key.
        """
        return self._keys.positions(feature, values)


def index_keys(column: Any) -> Keys:
    """Returns the positions of the keys in a `pyarrow.ChunkedArray`: int64 or strings, no nulls.

    Raises:
      FormatError: A key comes twice; names it.
    """
    import pyarrow as pa

    if column.type == pa.int64():
        return IntegerKeys(arrow.values(column))
    if len(column) <= DICTIONARY_MAX:
        return StringKeys(column.to_pylist())
    return MappedStringKeys(column.cast(pa.large_string()).combine_chunks())


def write_vocabulary(path: Path, keys: Values) -> None:
    """Writes a vocabulary: [size] int64 or object holding str, in the order of the rows.

    Raises:
      FormatError: A key comes twice.
      FeatureError: A value is no key.
    """
    import pyarrow as pa

    checked = known_kind("key", keys)
    arrow_type = pa.large_string()
    if checked.dtype == np.int64:
        arrow_type = pa.int64()
    column = pa.chunked_array([pa.array(checked, arrow_type)])
    # Raises if a key comes twice.
    index_keys(column)
    arrow.write(path, pa.table({"key": column}))


def _are_consecutive(keys: NDArray[np.int64]) -> bool:
    """Returns whether each key is the one before and one."""
    if not keys.size:
        return False
    # In Python's integers: the span of int64 keys may not fit an int64.
    span = int(keys[-1]) - int(keys[0])
    return span == keys.size - 1 and bool((np.diff(keys) == 1).all())


def _repeated(key: str) -> FormatError:
    return FormatError(f"id {key!r} comes twice; ids must be distinct")
