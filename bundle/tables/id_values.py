"""Ids and numbers, as callers send them, brought to one type each. A value that is neither is an
error that names its input.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.tables.offsets import Offsets, offsets_of

Rows = NDArray[np.int64]
Values = NDArray[Any]
"""[m] int64, [m] object holding str, or (buckets) [m] float32, as a caller sent them."""

DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
"""An integer as it is printed: `007` and `-0` are strings, wherever ids are read."""
_INT64 = np.iinfo(np.int64)
_ID_RANGE = "an id in [-2^63, 2^63)"
_ID_KINDS = "an integer or a string"
_INTEGER = "an integer in [-2^63, 2^63)"
_STRING = "a string"


def ids_of(id_dtype: str, field: str, values: Values) -> Values:
    """Returns ids as a store of one kind of ids holds them. Whatever takes ids of a store checks
    them by this rule.

    Args:
      id_dtype: The dtype of the store's ids, "int64" or "string".
      field: What the ids are called where they were sent, for the error.
      values: [m] values that were sent as ids.

    Returns:
      [m] int64, or [m] object holding str.

    Raises:
      FeatureError: A value is no id of this kind.
    """
    if id_dtype == "int64":
        return integers(field, values)
    return strings(field, values)


def known_kind(feature: str, values: Values, expected: str = _ID_KINDS) -> Values:
    """Returns ids as [m] int64 or [m] object holding str.

    Args:
      feature: The name of the feature, for the error.
      values: [m] values that were sent as ids.
      expected: The ids that the feature takes, for the error.

    Raises:
      FeatureError: They are neither: floats, bools, nulls, or integers beyond int64.
    """
    kind = values.dtype.kind
    if kind == "i":
        return values.astype(np.int64, copy=False)
    if kind == "u":
        if values.size and int(values.max()) > _INT64.max:
            raise FeatureError(feature, f"id {values.max()}", _ID_RANGE, "is beyond int64")
        return values.astype(np.int64)
    if kind == "U":
        return values.astype(object)
    if kind == "O":
        for value in values.tolist():
            if type(value) is not str:
                raise FeatureError(feature, short_text(value), expected, "is no id")
        return values
    if not values.size:
        return np.empty(0, np.int64)  # an empty list has no type of its own
    wrong = _first_wrong(values)
    # Unlike format(), str() is exact for float32.
    if kind == "f" and 2**63 <= abs(wrong) < np.inf:
        raise FeatureError(feature, f"an id of about {wrong!s}", _ID_RANGE, "is beyond int64")
    raise FeatureError(feature, wrong, expected, "is no id")


def _first_wrong(values: Values) -> Any:
    """Returns the first value that is no id; of floats, the first that is no integer, since one
    fraction makes all values floats.
    """
    if values.dtype.kind == "f":
        is_integer = (np.abs(values) < 2**63) & (np.trunc(values) == values)
        if not is_integer.all():
            values = values[~is_integer]
    return values.flat[0]


def int64_of(value: Any) -> int | None:
    """Returns an integer that was sent as such, or as its decimal text; None: it is neither, or
    beyond int64.
    """
    if type(value) is str and DECIMAL.fullmatch(value):
        value = int(value)
    if type(value) is int and _INT64.min <= value <= _INT64.max:
        return value
    return None


def integers(feature: str, values: Values) -> NDArray[np.int64]:
    """Returns ids as [m] int64; strings of decimal digits are taken, since JSON carries large
    integers so.

    Raises:
      FeatureError: A value is no integer of 64 bits.
    """
    if values.dtype == np.int64:
        return values
    ids: Values = known_kind(feature, values, _INTEGER)
    if ids.dtype == np.int64:
        return ids
    numbers_of_texts = np.empty(ids.size, np.int64)
    for position, text in enumerate(ids.tolist()):
        number = int64_of(text)
        if number is None:
            raise FeatureError(feature, short_text(text), _INTEGER, "is no integer id")
        numbers_of_texts[position] = number
    return numbers_of_texts


def strings(feature: str, values: Values) -> NDArray[Any]:
    """Returns ids as [m] object holding str.

    Raises:
      FeatureError: A value is no string.
    """
    ids = known_kind(feature, values, _STRING)
    if ids.dtype == np.int64:
        if ids.size:
            raise FeatureError(feature, ids[0], _STRING, "is an integer")
        return np.empty(0, object)
    return ids


def numbers(feature: str, values: Values) -> NDArray[np.float32]:
    """Returns finite numbers as [m] float32.

    Raises:
      FeatureError: A value is no number, NaN, or beyond float32.
    """
    if values.dtype.kind not in "iuf":
        if not values.size:
            return np.empty(0, np.float32)
        raise FeatureError(feature, short_text(values.flat[0]), "a number", "is no number")
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32, copy=False)
    is_finite = np.isfinite(floats)
    if np.count_nonzero(is_finite) < is_finite.size:
        wrong = values[~is_finite][0]
        raise FeatureError(feature, wrong, "a finite number", "is not finite in float32")
    return floats


def distinct(ids: NDArray[Any]) -> NDArray[Any]:
    """Returns ids in ascending order, each once; `ids` itself, if they are so already. Ten times as
    fast as `np.unique`, which hashes (numpy 2.4).
    """
    if (ids[1:] > ids[:-1]).all():
        return ids
    ordered = np.sort(ids)
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    distinct_ids: NDArray[Any] = ordered[is_first]
    return distinct_ids


def is_padding(padding: int | str, values: Values) -> NDArray[np.bool_] | None:
    """Returns which of [m] values are padding, [m] bool; None: none can be, because they are of
    another kind.
    """
    if isinstance(padding, str) != (values.dtype.kind in "OU"):
        return None
    equals_padding: NDArray[np.bool_] = values == padding
    return equals_padding


def without(padding: int | str, values: Values, offsets: Offsets) -> tuple[Values, Offsets]:
    """Returns values and [n + 1] int64 offsets without padding."""
    is_left_out = is_padding(padding, values)
    if is_left_out is None or not np.count_nonzero(is_left_out):
        return values, offsets
    return values[~is_left_out], offsets_of(~is_left_out)[offsets]


def short_text(value: Any) -> str:
    """Returns a value as an error shows it, in at most 80 characters."""
    text = repr(value)
    if len(text) > 80:
        text = f"{text[:77]}..."
    return text
