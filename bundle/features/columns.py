"""The values that callers send for one feature, packed, and the values that a tower takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, NotSent
from bundle.tables.offsets import Offsets, chosen_bags, lengths_of

_OFFSETS_SHOWN = 16
"""Offsets that an error shows."""


class Column(NamedTuple):
    """The values of one feature for n examples, packed. It is a tuple, since a request to a wide
    model creates thousands of them.

    Attributes:
      values: [m] int64, [m] object holding str, or [m] float32. A dense feature's values are flat,
        too.
      offsets: [n + 1] int64, from 0 to m, never decreasing: example i owns
        values[offsets[i]:offsets[i + 1]]. None: Every example owns the same number of values.
      weights: [m] float32, the weights of the values of a weighted bag. None: All weights are 1.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    weights: NDArray[np.float32] | None = None


class Activation(NamedTuple):
    """The values that a tower takes of one feature.

    Attributes:
      values: [n, dim] float32 for a single or a bag, [n, length, dim] float32 for a sequence, [n,
        *shape] for a dense feature.
      unknown: The number of ids that the table does not know; 0 where the whole column is the
        default.
    """

    values: NDArray[Any]
    unknown: int = 0


class OutputBlock(NamedTuple):
    """An array that features are written into, side by side, such as an input of a tower.

    Attributes:
      array: [n, width]. The last axis is contiguous; the rows may lie anywhere.
      names: The names of the features, in the order of their columns.
      ends: The column after the last one of each feature.
    """

    array: NDArray[Any]
    names: tuple[str, ...]
    ends: tuple[int, ...]


def weights_rejected(name: str) -> FeatureError:
    """Returns the error for weights of a feature that takes none."""
    return FeatureError(name, "weights", "a list without them", "were sent")


def checked_weights(name: str, column: Column) -> NDArray[np.float32]:
    """Returns the weights of a column that has some: [m] float32, one for each of its m values.

    Raises:
      FeatureError: There is not one for each value; names feature `name`.
    """
    weights = column.weights
    assert weights is not None  # noqa: S101 - the caller has looked
    if weights.shape != column.values.shape:
        value = f"{weights.size} weights for {column.values.size} values"
        raise FeatureError(name, value, "one weight for each value")
    return weights


def checked_offsets(name: str, column: Column, n: int) -> Offsets:
    """Returns [n + 1] int64 offsets, computed where every example owns the same number of values.

    Raises:
      FeatureError: The offsets do not fit the values or the examples; names feature `name`.
    """
    size = column.values.size
    if column.values.ndim != 1:
        raise FeatureError(name, f"values of shape {column.values.shape}", "a flat array")
    if column.offsets is None:
        per_example = 0
        if n:
            per_example = size // n
        if per_example * n != size:
            value = f"{size} values for {n} examples without offsets"
            raise FeatureError(name, value, "the same number of values for each example")
        return np.arange(n + 1, dtype=np.int64) * per_example

    # Checked in full: code that reads by these offsets does not look at their bounds again.
    offsets = column.offsets
    if offsets.shape != (n + 1,) or offsets.dtype.kind not in "iu":
        expected = f"a list of {n + 1} integers for {n} examples"
        raise FeatureError(name, f"offsets of shape {offsets.shape}", expected)
    if offsets.dtype != np.int64:
        offsets = offsets.astype(np.int64)
    (falls,) = (offsets[1:] < offsets[:-1]).nonzero()
    if falls.size or offsets[0] != 0 or offsets[-1] != size:
        value = f"offsets {np.array2string(offsets, threshold=_OFFSETS_SHOWN)}"
        expected = f"a list that begins with 0, never falls, and ends with the {size} values"
        raise FeatureError(name, value, expected)
    return offsets


def checked_together(names: Sequence[str], columns: Sequence[Column], n: int) -> list[Offsets]:
    """Returns what `checked_offsets` returns for each column. All columns are checked at once,
    unless some of them are unusual or wrong.

    Raises:
      FeatureError: The same as for `checked_offsets`.
    """
    if len(columns) == 1:
        return [checked_offsets(names[0], columns[0], n)]
    stacked = _stacked_offsets(columns, n)
    if stacked is not None:
        sizes = [column.values.size for column in columns]
        is_sound = (stacked[:, 0] == 0) & (stacked[:, -1] == sizes)
        falls = stacked[:, 1:] < stacked[:, :-1]
        if is_sound.all() and not np.count_nonzero(falls):
            return list(stacked)
    # One by one, the error names the column at fault.
    return [checked_offsets(name, column, n) for name, column in zip(names, columns, strict=True)]


def _stacked_offsets(columns: Sequence[Column], n: int) -> NDArray[np.int64] | None:
    """Returns the offsets of several columns, [columns, n + 1], unchecked. None: Some are not
    int64, or have another shape.
    """
    offsets_of_singles = np.arange(n + 1, dtype=np.int64)
    rows = []
    for values, offsets, _ in columns:
        if values.ndim != 1:
            return None
        if offsets is not None:
            if offsets.dtype != np.int64 or offsets.shape != offsets_of_singles.shape:
                return None
            rows.append(offsets)
        elif values.size == n:
            rows.append(offsets_of_singles)
        else:
            return None
    if not rows:
        return None
    return np.concatenate(rows).reshape(-1, n + 1)


def one_each(name: str, column: Column, default: Column | None, n: int) -> Column:
    """Returns a column with one value per example: the default where an example has none.

    Args:
      name: The name of the feature, for errors.
      column: The values that were sent.
      default: A column of the one value of examples that have none; None: there is no default.
      n: The number of examples.

    Returns:
      [n] values without offsets, and [n] float32 weights if any were sent, 1 beside the default.

    Raises:
      FeatureError: An example has several values, or it has none and there is no default; names
        feature `name`.
    """
    if column.offsets is None and column.values.shape == (n,):
        return column
    lengths = lengths_of(checked_offsets(name, column, n))
    if (lengths > 1).any():
        example = int(np.argmax(lengths))
        value = f"{lengths[example]} values in example {example}"
        raise FeatureError(name, value, "one value")
    if lengths.all():
        return Column(column.values, None, column.weights)
    if default is None:
        raise NotSent(name)

    # Values and the default are joined in one array, so that both need one type.
    values = column.values
    filling = default.values
    if values.size:
        if (values.dtype == object) != (filling.dtype == object):
            # Strings of digits are integers, too.
            values = values.astype(str).astype(object)
            filling = filling.astype(str).astype(object)
        filling = filling.astype(np.result_type(values, filling))
    filled = np.repeat(filling, n)
    filled[lengths == 1] = values
    weights = None
    if column.weights is not None:
        weights = np.ones(n, np.float32)
    return Column(filled, None, weights)


def column_of_position(name: str, position: int) -> str:
    """Returns the name of the column of the values at one position of an input."""
    # No input can have such a name: names have no NUL.
    return f"{name}\0{position}"


def spread(name: str, column: Column, count: int, n: int) -> dict[str, Column]:
    """Returns a column for each position of an input that holds `count` values for each of n
    examples, keyed by `column_of_position`.

    Args:
      name: The name of the input.
      column: [n * count] values of one example after the other, with or without offsets.
      count: The number of values of each example.
      n: The number of examples.

    Returns:
      `count` columns of [n] values.

    Raises:
      FeatureError: An example has more or fewer values, or there are weights; names input `name`.
    """
    if column.weights is not None:
        raise weights_rejected(name)
    if column.offsets is not None or column.values.shape != (n * count,):
        lengths = lengths_of(checked_offsets(name, column, n))
        wrong = np.flatnonzero(lengths != count)
        if wrong.size:
            example = int(wrong[0])
            value = f"{lengths[example]} values in example {example}"
            raise FeatureError(name, value, f"a list of {count}")
    by_position = np.ascontiguousarray(column.values.reshape(n, count).T)
    return {
        column_of_position(name, position): Column(values)
        for position, values in enumerate(by_position)
    }


def repeated(name: str, column: Column, counts: NDArray[np.int64]) -> Column:
    """Returns a column with example i of this one repeated counts[i] times.

    Raises:
      FeatureError: The same as for `checked_offsets`.
    """
    offsets = checked_offsets(name, column, counts.size)
    copies = np.arange(counts.size).repeat(counts)
    positions, copied_offsets = chosen_bags(offsets, copies)
    weights = None
    if column.weights is not None:
        weights = column.weights[positions]
    return Column(column.values[positions], copied_offsets, weights)
