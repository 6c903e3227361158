"""A feature that reads no table: numbers that go to the towers as they are, the ids of a bag in a
row, or their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, NotSent, rejection_of_unknown
from bundle.features.columns import (
    Activation,
    Column,
    checked_offsets,
    checked_weights,
    weights_rejected,
)
from bundle.format.manifest import DenseFeature
from bundle.tables import id_values
from bundle.tables.offsets import lengths_of

_INT32 = np.iinfo(np.int32)


class Dense:
    """Checks and shapes the numbers of one feature.

    Attributes:
      column_name: The name of its column, which is the name of its input.
      inputs: The name of its input.
      shape: The shape of one example.
    """

    def __init__(self, name: str, feature: DenseFeature, drop_weights: bool = False) -> None:
        """Creates a feature.

        Args:
          name: The name of its input.
          feature: The entry of the manifest.
          drop_weights: Whether the input is sent with weights, which another feature takes.
        """
        self.column_name = name
        self.inputs = (name,)
        self.shape = feature.shape
        self._spec = feature
        self._drop_weights = drop_weights
        # Python's integers do not overflow, as those of NumPy would for a nonsensical shape.
        self._size = math.prod(feature.shape)
        self._default: NDArray[Any] | None = None
        if feature.default is not None:
            self._default = self._stated(feature.default)

    @property
    def native(self) -> int | None:
        """The number of float32 values that it takes of each example as they are sent. None: It
        takes something else.
        """
        if self._spec.take != "values" or self._spec.dtype != "float32":
            return None
        return self._size

    @property
    def has_default(self) -> bool:
        """Whether the input may be left out."""
        return self._default is not None

    def activation(self, columns: Mapping[str, Column], n: int) -> Activation:
        """Returns [n, *shape] numbers; the default n times if there is no column.

        Raises:
          FeatureError: A value is no number or not finite, the values have another shape, or they
            are missing and there is no default.
        """
        column = columns.get(self.column_name)
        if column is None:
            return Activation(np.repeat(self._required_default(), n, axis=0))
        if column.weights is not None and not self._drop_weights:
            raise weights_rejected(self.column_name)
        if self._spec.take == "lengths":
            return Activation(self._numbers(self._lengths(column, n)).reshape(n, *self.shape))
        if self._spec.take in ("padded", "weights"):
            return Activation(self._padded(column, n))
        # The usual request: as many numbers for each example, in order.
        if column.offsets is None and column.values.shape == (n * self._size,):
            return Activation(self._numbers(column.values).reshape(n, *self.shape))

        lengths = lengths_of(checked_offsets(self.column_name, column, n))
        is_absent = lengths == 0
        is_wrong = (lengths != self._size) & ~is_absent
        if is_wrong.any():
            example = int(np.argmax(is_wrong))
            value = f"{lengths[example]} numbers in example {example}"
            expected = f"a list of {self._size} numbers of shape {self.shape}"
            raise FeatureError(self.column_name, value, expected)
        values = self._numbers(column.values).reshape(-1, *self.shape)
        if not is_absent.any():
            return Activation(values)
        filled = np.repeat(self._required_default(), n, axis=0)
        filled[~is_absent] = values
        return Activation(filled)

    def _lengths(self, column: Column, n: int) -> NDArray[np.int64]:
        """Returns the number of ids of each example, [n]. In a list of a fixed length that feature
        columns of TensorFlow pad with -1 or "", these are the ids up to the last one that is no
        padding.
        """
        length = self._spec.input_length
        if length is None or length.pad not in (-1, ""):
            return lengths_of(checked_offsets(self.column_name, column, n))
        # Fitted before, so that each example has as many values.
        values = column.values.reshape(n, length.values)
        padding = length.pad
        if values.dtype == object:
            padding = str(padding)
        # The number of values up to each one that is no padding: the largest is the length.
        counts = np.where(values != padding, np.arange(1, length.values + 1), 0)
        longest: NDArray[np.int64] = counts.max(axis=1, initial=0)
        return longest

    def _stated(self, default: Any) -> NDArray[Any]:
        """Returns the numbers of a default, [1, *shape]."""
        stated = default
        weights = None
        if self._drop_weights and isinstance(default, dict):
            stated = default["ids"]
            if "weights" in default:
                weights = np.asarray(default["weights"], np.float32).reshape(-1)
        values = np.asarray(stated)
        if self._spec.take in ("padded", "weights"):
            return self._padded(Column(values.reshape(-1), None, weights), 1)
        if self._spec.take == "lengths":
            values = np.full(self.shape, values.size)
        if values.shape != self.shape:
            raise FeatureError(
                self.column_name, f"shape {values.shape}", f"{self.shape}", "was given"
            )
        return self._numbers(values.reshape(-1)).reshape(1, *self.shape)

    def _padded(self, column: Column, n: int) -> NDArray[Any]:
        """Returns the values of each example one after another, followed by zeros, [n, size]."""
        lengths = lengths_of(checked_offsets(self.column_name, column, n))
        if lengths.max(initial=0) > self._size:
            example = int(np.argmax(lengths > self._size))
            value = f"{lengths[example]} values in example {example}"
            raise FeatureError(self.column_name, value, f"a list of at most {self._size}")
        values = column.values
        if self._spec.take == "weights":
            if column.weights is None:
                values = np.ones(values.size, np.float32)
            else:
                values = checked_weights(self.column_name, column)
        values = self._numbers(values)
        filler: int | str = 0
        if values.dtype == object:
            filler = ""
        padded = np.full((n, self._size), filler, values.dtype)
        is_sent = np.arange(self._size) < lengths[:, np.newaxis]
        padded[is_sent] = values
        return padded

    def _numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns values with the dtype of the feature."""
        if self._spec.dtype == "float32":
            return id_values.numbers(self.column_name, values)
        if self._spec.dtype == "string":
            return id_values.strings(self.column_name, values)
        return self._integers(values)

    def _integers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns values as integers of the dtype of the feature."""
        integers = id_values.integers(self.column_name, values)
        if self._spec.dtype == "int32":
            is_beyond = (integers < _INT32.min) | (integers > _INT32.max)
            if is_beyond.any():
                value = integers[is_beyond][0]
                expected = "an integer in [-2^31, 2^31)"
                raise FeatureError(self.column_name, value, expected, "is beyond int32")
            integers = integers.astype(np.int32)
        if self._spec.outside == "refuse":
            self._reject_outside(integers)
        return integers

    def _reject_outside(self, ids: NDArray[Any]) -> None:
        """Raises FeatureError if an id is not a row of the table inside the towers."""
        rows = self._spec.below
        if rows is None:
            return
        first = 0
        if self._spec.from_end:
            first = -rows
        is_outside = (ids < first) | (ids >= rows)
        if is_outside.any():
            value = f"id {ids[is_outside][0]}"
            rejection = rejection_of_unknown(self.column_name)
            predicate = f"is not in its table, which has {rows} rows, {rejection}"
            raise FeatureError(self.column_name, value, "an id in the table", predicate)

    def _required_default(self) -> NDArray[Any]:
        """Returns the default; raises FeatureError if there is none."""
        if self._default is None:
            raise NotSent(self.column_name)
        return self._default
