"""Inputs of a model, read from the columns of files as a caller would send them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import WrongLength
from bundle.features.columns import Column
from bundle.features.input_lengths import FittedColumn, default_column, fit_length
from bundle.format.features import DenseFeature, Feature, input_entry, readers_of
from bundle.format.input_lengths import InputLength
from bundle.shown_values import shown_names
from rows.batches import Rows
from rows.cells import LIST_SEPARATOR, cells_of, feature_column, holds_lists, plain_values
from rows.errors import FileRejected, ValueRejected


class InputRows(NamedTuple):
    """Some rows of a file, or those of one record.

    Attributes:
      size: The number of rows.
      columns: The values by input; an input that is missing is left out.
      more_columns: [n, ...] the values of further columns.
      empty: The inputs that are missing because all of their lists are empty: programs that write
        training data leave such lists out. Others that are missing take their defaults.
    """

    size: int
    columns: Mapping[str, Column]
    more_columns: Mapping[str, list[Any]]
    empty: Collection[str]

    def column(self, name: str, default: Column | None) -> Column:
        """Returns the values of an input, whose default is a column of one example."""
        if name in self.empty:
            return Column(np.empty(0, np.int64), np.zeros(self.size + 1, np.int64))
        if name in self.columns or default is None:
            return self.columns[name]
        weights = None
        if default.weights is not None:
            weights = np.tile(default.weights, self.size)
        return Column(np.tile(default.values, self.size), None, weights)


class InputReader:
    """Reads one input.

    Attributes:
      name: The name of the input.
      feature: A feature that reads it, as the reader of this input alone.
      default: The values of an example that lacks the input; None: it has no default.
    """

    def __init__(self, name: str, feature: Feature, *, fills: bool) -> None:
        """Describes an input.

        Args:
          name: The name of the input.
          feature: The feature that defines how its values are written; see `readers_of`.
          fills: Whether an example without values takes the default already here, if the input has
            a fixed number of values.
        """
        self.name = name
        self.feature = input_entry(name, feature)
        self.default = default_column(name, self.feature.input_length, self.feature.default)
        self._length = self.feature.input_length
        if fills and self._length is None:
            self._length = _fixed_length(feature, self.feature)

    @property
    def takes_any_length(self) -> bool:
        """Whether an example may have any number of values."""
        return self._length is None

    def key_parts(self) -> Any:
        """Returns all that decides what is read."""
        return [self.name, self.feature, self._length]

    def read(
        self, rows: Rows, column: str, separator: str, weights_column: str = ""
    ) -> FittedColumn:
        """Reads the input of some rows.

        Args:
          rows: The rows.
          column: The column of the values.
          separator: The separator of the values of a CSV cell.
          weights_column: The column of the weights; "": there are none.

        Raises:
          ValueRejected: A value does not fit the input, or a row has another number of values or
            weights than it takes.
        """
        values = feature_column(rows, column, self.name, self.feature, separator)
        if weights_column:
            weights = _weights(rows, column, weights_column, separator)
            values = values._replace(weights=weights)
        return self.fit(values, len(rows), rows, column)

    def fit(self, values: Column, n: int, source: Rows | str, column: str = "") -> FittedColumn:
        """Returns the values of n examples with as many values as the input takes.

        Args:
          values: The values.
          n: The number of examples.
          source: The rows of the examples; or what holds all of them, in words.
          column: The column of the values.

        Raises:
          ValueRejected: An example has another number of values.
        """
        if self._length is None:
            return FittedColumn(values)
        try:
            fitted = fit_length(self.name, self._length, values, n, self.default)
        except WrongLength as problem:
            where = source
            if isinstance(source, Rows):
                where = source.at(column, problem.example)
            raise ValueRejected(
                f"{where} {problem.counts} by input {self.name!r}; write lists "
                f"of that length, or state what pads or cuts others as inputs.{self.name}.pad and "
                f"inputs.{self.name}.keep",
                column,
            ) from problem
        # All lists are of one length now, so they need no offsets.
        return fitted._replace(column=fitted.column._replace(offsets=None))


def input_readers(
    features: Mapping[str, Feature], names: Iterable[str], *, fills: bool
) -> dict[str, InputReader]:
    """Returns the readers of inputs, by name; for the arguments, see `InputReader`."""
    readers = readers_of(features)
    return {name: InputReader(name, features[readers[name][0]], fills=fills) for name in names}


class TableReader:
    """Reads the inputs of a model from columns of their names."""

    def __init__(
        self,
        features: Mapping[str, Feature],
        names: Collection[str],
        weights: Mapping[str, str],
        more_columns: Collection[str],
    ) -> None:
        """Describes the columns.

        Args:
          features: The features of the manifest.
          names: The inputs.
          weights: The column of the weights of an input, by its name.
          more_columns: Further columns, such as labels.
        """
        self._readers = input_readers(features, names, fills=True)
        self._weights = weights
        self._more_columns = more_columns

    def read(self, rows: Rows) -> InputRows:
        """Returns the inputs of some rows.

        Raises:
          FileRejected: A column is missing, whose input has no default.
          ValueRejected: A value does not fit its input.
        """
        columns: dict[str, Column] = {}
        empty = []
        for name, reader in self._readers.items():
            weights = self._weights.get(name, "")
            if weights not in rows.columns:
                weights = ""
            if name in rows.columns:
                columns[name] = reader.read(rows, name, LIST_SEPARATOR, weights).column
            elif rows.file.format == "tfrecord" and reader.takes_any_length:
                empty.append(name)
            elif reader.default is None:
                raise _missing(rows, name, "has no default")
        more_columns = {name: _values_of(rows, name) for name in self._more_columns}
        return InputRows(len(rows), columns, more_columns, empty)


def _values_of(rows: Rows, name: str) -> list[Any]:
    """Returns the values of a column as they are; those of lists of one value alone."""
    if name not in rows.columns:
        raise _missing(rows, name, "the recipe names under verify")
    return plain_values(replace(rows, columns={name: rows.columns[name]}), len(rows))[name]


def _missing(rows: Rows, name: str, reason: str) -> FileRejected:
    return FileRejected(
        f"{rows.file.path.name} has no {name!r}, which {reason}; it has "
        f"{shown_names(rows.columns)}",
        name,
    )


def _fixed_length(feature: Feature, entry: Feature) -> InputLength | None:
    """Returns the number of values of an input whose features take no other; None: any number."""
    if isinstance(feature, DenseFeature):
        if feature.take == "values":
            return InputLength(values=math.prod(feature.shape))
    elif feature.places is not None:
        return InputLength(values=feature.places)
    elif not holds_lists(entry):
        return InputLength(values=1)
    return None


def _weights(rows: Rows, column: str, weights_column: str, separator: str) -> NDArray[np.float32]:
    """Returns the weights of all values, [m] float32."""
    counts = cells_of(rows, column, separator).flat()[1]
    weights, weight_counts = cells_of(rows, weights_column, separator).flat()
    # A record without weights leaves all of them out.
    has_weights = np.ones(len(rows), bool)
    if rows.file.format == "tfrecord":
        has_weights = weight_counts > 0
    is_wrong = has_weights & (counts != weight_counts)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise ValueRejected(
            f"{rows.at(column, row)} has {counts[row]} values and {weight_counts[row]} weights; "
            "one weight for each value was expected",
            column,
        )
    values = np.ones(counts.sum(), np.float32)
    values[np.repeat(has_weights, counts)] = weights.floats()
    return values
