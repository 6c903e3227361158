"""Id -> row: identity, hash, vocabulary and buckets. The train/serve skew lives or dies here.

A rule resolves what a caller sent for one feature to rows of its table, -1 where the table does not know the id. What
is no id at all is an error that names the feature, the value and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import farmhash
import numpy as np
from numpy.typing import NDArray

from bundle import arrow
from bundle.errors import FeatureError, FormatError

Rows = NDArray[np.int64]
Values = NDArray[Any]
"""[m] int64, [m] object holding str, or (buckets) [m] float32, as a caller sent them."""

_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_INT64 = np.iinfo(np.int64)


class Rule(Protocol):
    """How the ids of one feature become rows."""

    def resolve(self, values: Values) -> Rows:
        """Returns [m] int64 rows, -1 where the id is unknown; raises FeatureError for what is no id."""


class Identity:
    """The id is the row."""

    def __init__(self, feature: str, rows: int) -> None:
        self._feature, self._rows = feature, rows

    def resolve(self, values: Values) -> Rows:
        """Resolves integers; strings of decimal digits are integers."""
        return _within(integers(self._feature, values), self._rows)


class Hash:
    """Row = FarmHash Fingerprint64(the string, or the integer's decimal string) mod `buckets`."""

    def __init__(self, feature: str, rows: int, buckets: int) -> None:
        self._feature, self._rows, self._buckets = feature, rows, buckets

    def resolve(self, values: Values) -> Rows:
        """Resolves integers and strings.

        Source: TensorFlow 2.20, core/kernels/string_to_hash_bucket_fast_op.h and AsString (the rule).
        """
        ids = known_kind(self._feature, values)
        keys = map(str, ids.tolist()) if ids.dtype == np.int64 else ids.tolist()
        fingerprint, buckets = farmhash.fingerprint64, self._buckets
        try:
            rows = np.array([fingerprint(key) % buckets for key in keys], np.int64)
        except UnicodeEncodeError as problem:
            raise FeatureError(
                self._feature, f"a string is no Unicode text: {problem}; UTF-8 was expected"
            ) from problem
        return rows if buckets <= self._rows else _within(rows, self._rows)


class Listed:
    """Row = `first_row` + position of the id in a vocabulary."""

    def __init__(self, feature: str, rows: int, vocabulary: Vocabulary, first_row: int) -> None:
        self._feature, self._rows, self._first_row = feature, rows, first_row
        self._vocabulary = vocabulary

    def resolve(self, values: Values) -> Rows:
        """Resolves integers or strings, whichever the vocabulary holds."""
        rows = self._vocabulary.find(self._feature, values)
        if self._first_row:
            rows = np.where(rows < 0, rows, rows + self._first_row)
        return _within(rows, self._rows)


class Buckets:
    """Row = number of boundaries that are <= the value, compared as float32."""

    def __init__(self, feature: str, rows: int, boundaries: Sequence[float]) -> None:
        self._feature, self._rows = feature, rows
        self._boundaries = np.asarray(boundaries, np.float32)

    def resolve(self, values: Values) -> Rows:
        """Resolves numbers, whole or not.

        Source: TensorFlow 2.20, core/kernels/bucketize_op.cc (the rule: std::upper_bound).
        """
        found = np.searchsorted(self._boundaries, numbers(self._feature, values), side="right")
        return _within(found.astype(np.int64, copy=False), self._rows)


class IntegerKeys:
    """Positions of distinct int64 keys; keys that follow one another take no memory but a number."""

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
        else:
            self._consecutive = True

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is no integer."""
        wanted = integers(feature, values)
        if self._consecutive:
            inside = (wanted >= self._first) & (wanted <= self._first + self.size - 1)
            return np.where(inside, np.where(inside, wanted, self._first) - self._first, -1)
        if not self.size:
            return np.full(wanted.size, -1, np.int64)
        place = np.minimum(np.searchsorted(self._sorted, wanted), self.size - 1)
        position = place if self._order is None else self._order[place]
        return np.where(self._sorted[place] == wanted, position, -1)


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
            twice = next(key for position, key in enumerate(keys) if self._positions[key] != position)
            raise FormatError(f"id {twice!r} comes twice; ids must be distinct")

    def positions(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions, -1 where a key is not held; raises FeatureError for what is no string."""
        get = self._positions.get
        return np.array([get(value, -1) for value in strings(feature, values).tolist()], np.int64)


class Vocabulary:
    """The keys of a vocabulary in the order of their rows."""

    def __init__(self, keys: IntegerKeys | StringKeys) -> None:
        self._keys = keys
        self.size, self.dtype = keys.size, keys.dtype

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
            raise FormatError(f"vocabulary {path.name!r} holds {keys.null_count} nulls; every key must be given")
        if keys.type == pa.int64():
            return Vocabulary(IntegerKeys(arrow.integers(keys)))
        if keys.type in (pa.string(), pa.large_string()):
            return Vocabulary(StringKeys(keys.to_pylist()))
        raise FormatError(f"vocabulary {path.name!r} has keys of type {keys.type}; int64 or string was expected")

    def find(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 positions of keys, -1 where there is none; raises FeatureError for what is no key."""
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
        path, pa.table({"key": pa.array(checked, pa.int64() if checked.dtype == np.int64 else pa.large_string())})
    )


def known_kind(feature: str, values: Values) -> Values:
    """Returns ids as [m] int64 or [m] object holding str.

    Raises:
      FeatureError: they are neither: floats, bools, nulls, or integers beyond int64.
    """
    kind = values.dtype.kind
    if kind == "i":
        return values if values.dtype == np.int64 else values.astype(np.int64)
    if kind == "u":
        if values.size and int(values.max()) > _INT64.max:
            raise FeatureError(feature, f"id {values.max()} is beyond int64; ids lie in [-2^63, 2^63)")
        return values.astype(np.int64)
    if kind == "U":
        return values.astype(object)
    if kind == "O":
        for value in values.tolist():
            if type(value) is not str:
                raise FeatureError(feature, f"{_shown(value)} is no id; an integer or a string was expected")
        return values
    if not values.size:
        return np.empty(0, np.int64)  # an empty list has no type of its own
    raise FeatureError(feature, f"{_shown(values.flat[0].item())} is no id; an integer or a string was expected")


def integers(feature: str, values: Values) -> NDArray[np.int64]:
    """Returns ids as [m] int64; strings of decimal digits are taken, since JSON carries large integers so.

    Raises:
      FeatureError: a value is no integer of 64 bits.
    """
    ids: Values = values if values.dtype == np.int64 else known_kind(feature, values)
    if ids.dtype == np.int64:
        return ids
    result = np.empty(ids.size, np.int64)
    for place, text in enumerate(ids.tolist()):
        number = int(text) if _DIGITS.fullmatch(text) else _INT64.max + 1
        if not _INT64.min <= number <= _INT64.max:
            raise FeatureError(feature, f"{_shown(text)} is no integer id; an integer in [-2^63, 2^63) was expected")
        result[place] = number
    return result


def strings(feature: str, values: Values) -> NDArray[Any]:
    """Returns ids as [m] object holding str.

    Raises:
      FeatureError: a value is no string.
    """
    ids = known_kind(feature, values)
    if ids.dtype == np.int64:
        if ids.size:
            raise FeatureError(feature, f"{ids[0]} is an integer; the ids of this feature are strings")
        return np.empty(0, object)
    return ids


def numbers(feature: str, values: Values) -> NDArray[np.float32]:
    """Returns finite numbers as [m] float32.

    Raises:
      FeatureError: a value is no number, NaN, or beyond float32.
    """
    if values.dtype.kind not in "iuf":
        if not values.size:
            return np.empty(0, np.float32)
        raise FeatureError(feature, f"{_shown(values.flat[0])} is no number")
    with np.errstate(over="ignore"):
        result = values.astype(np.float32, copy=False)
    finite = np.isfinite(result)
    if np.count_nonzero(finite) < finite.size:
        wrong = values[~finite][0]
        raise FeatureError(feature, f"{wrong} is not finite in float32; a finite number was expected")
    return result


def _within(rows: Rows, count: int) -> Rows:
    # Seen as unsigned, negative rows are huge: one comparison finds both ends. Counting is much cheaper than any().
    beyond = rows.view(np.uint64) >= np.uint64(count)
    return np.where(beyond, -1, rows) if np.count_nonzero(beyond) else rows


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
