"""Ids, features and attributes by position, in Arrow record batches.

The columns are `id`, `feature:<name>` (with `weights:<name>` beside a weighted bag) and
`attribute:<name>`. Positions are counted over all batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import FeatureError, FormatError, RowOutOfRange
from bundle.features.columns import Column
from bundle.storage import arrow
from bundle.stores.attribute_index import DistinctValues
from bundle.stores.value_counts import ValueCounts
from bundle.tables.offsets import offsets_of

Positions = NDArray[np.int64]

_NUMBER_TEXT_BYTES = 24
"""The bytes of the longest number as JSON, with quotes and a comma: an int64 beyond 2^53."""


@dataclass(frozen=True, eq=False)
class ColumnBatch:
    """The columns of some candidates that follow each other.

    Attributes:
      arrays: A `pyarrow.Array` by column.
      numbers: Views of integer ids, and of the features of which each candidate has one number, by
        column: NumPy reads them in a tenth of the time that pyarrow takes.
      size: The number of candidates.
    """

    arrays: Mapping[str, Any]
    numbers: Mapping[str, NDArray[Any]]
    size: int
    _distinct_values: dict[str, DistinctValues] = field(default_factory=dict)

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], features: Iterable[str]) -> ColumnBatch:
        """Returns columns that have these features."""
        unweighted = [name for name in features if f"weights:{name}" not in arrays]
        numbers = {}
        for column in ["id", *(f"feature:{name}" for name in unweighted)]:
            stored = arrays[column]
            if arrow.kind_of(stored.type) in {"int64", "float"}:
                numbers[column] = arrow.values(stored)
        return ColumnBatch(arrays, numbers, len(arrays["id"]))

    def distinct_values(self, attribute: str) -> DistinctValues:
        """Returns the values of an attribute, which are found once."""
        if attribute not in self._distinct_values:
            column = self.arrays[f"attribute:{attribute}"]
            self._distinct_values[attribute] = DistinctValues.of_column(column)
        return self._distinct_values[attribute]


class StoredColumns:
    """Ids, features and attributes by position. Safe for any number of threads.

    Attributes:
      size: The number of positions.
      batches: The columns, of which all have the same types.
    """

    def __init__(
        self, batches: Sequence[ColumnBatch], features: Sequence[str], attributes: Sequence[str]
    ) -> None:
        """Takes the columns.

        Args:
          batches: One or more, all with the same columns of the same types.
          features: The names of the features.
          attributes: The names of the attributes.
        """
        self.batches = batches
        self._features = tuple(features)
        self._attributes = tuple(attributes)
        self._starts = offsets_of([batch.size for batch in batches])
        self._text_bytes: dict[str, int] = {}
        self._value_counts: dict[str, ValueCounts] = {}
        self.size = int(self._starts[-1])

    @property
    def types(self) -> dict[str, Any]:
        """The `pyarrow.DataType` of each column: the ids, features, weights and attributes."""
        arrays = self.batches[0].arrays
        names = ["id"]
        for name in self._features:
            names.append(f"feature:{name}")
            if f"weights:{name}" in arrays:
                names.append(f"weights:{name}")
        names += [f"attribute:{name}" for name in self._attributes]
        return {name: arrays[name].type for name in names}

    def ids(self, positions: Positions) -> NDArray[Any]:
        """Returns the ids at [m] int64 positions: [m] int64, or [m] object holding str.

        Raises:
          RowOutOfRange: A position is negative or past the end.
        """
        if "id" in self.batches[0].numbers:
            return self._select(positions).numbers("id")
        return arrow.values(self.arrays(positions, ["id"])["id"])

    def features(self, positions: Positions, names: Sequence[str]) -> dict[str, Column]:
        """Returns the named features of the candidates at [m] int64 positions, a column of m
        examples each.

        Raises:
          RowOutOfRange: A position is negative or past the end.
          FeatureError: The store does not hold a feature.
        """
        absent = [name for name in names if name not in self._features]
        if absent:
            expected = f"one of {', '.join(self._features)}"
            raise FeatureError(absent[0], "no such feature", expected, "is stored")
        selection = self._select(positions)
        first = self.batches[0]
        features = {}
        columns = []
        # Single numbers are read from their views, all other columns by pyarrow at once.
        for name in names:
            column = f"feature:{name}"
            if column in first.numbers:
                features[name] = Column(selection.numbers(column))
            else:
                columns.append(column)
                if f"weights:{name}" in first.arrays:
                    columns.append(f"weights:{name}")
        arrays = selection.arrays(columns)
        for name in names:
            if name not in features:
                features[name] = column_of(arrays[f"feature:{name}"], arrays.get(f"weights:{name}"))
        return features

    def attributes(self, positions: Positions, names: Sequence[str]) -> dict[str, list[Any]]:
        """Returns the named attributes of the candidates at [m] int64 positions: int, float, str,
        bool, list or None.

        Raises:
          RowOutOfRange: A position is negative or past the end.
          FeatureError: The store does not hold an attribute.
        """
        absent = [name for name in names if name not in self._attributes]
        if absent:
            expected = f"one of {', '.join(self._attributes) or 'none'}"
            raise FeatureError(absent[0], "no such attribute", expected)
        arrays = self.arrays(positions, [f"attribute:{name}" for name in names])
        return {name: arrays[f"attribute:{name}"].to_pylist() for name in names}

    def numbers(self, positions: Positions, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Returns attributes of numbers or bools of the candidates at [m] int64 positions, null as
        0.
        """
        arrays = self.arrays(positions, [f"attribute:{name}" for name in names])
        numbers = {}
        for name in names:
            # Not safe: integers beyond 2^53 are rounded, as every float64 is.
            array = arrays[f"attribute:{name}"].cast("float64", safe=False)
            numbers[name] = array.fill_null(0.0).to_numpy(zero_copy_only=False)
        return numbers

    def codes(self, positions: Positions, attribute: str) -> NDArray[np.int64]:
        """Returns [m] int64 codes from 0, equal for candidates with equal values of an attribute;
        -1: it is null.
        """
        column = f"attribute:{attribute}"
        values = self.arrays(positions, [column])[column]
        indices = values.dictionary_encode().indices.fill_null(-1)
        codes: NDArray[np.int64] = indices.to_numpy().astype(np.int64)
        return codes

    def cardinality(self, attribute: str) -> tuple[int, int]:
        """Returns how many values an attribute has, and how many candidates have none; all are read
        once.
        """
        counts = self.value_counts(attribute)
        return len(counts.values), counts.null_count

    def value_counts(self, attribute: str) -> ValueCounts:
        """Returns how many positions have each value of an attribute; all are read once."""
        if attribute not in self._value_counts:
            import pyarrow as pa

            column = f"attribute:{attribute}"
            stored = pa.chunked_array([batch.arrays[column] for batch in self.batches])
            self._value_counts[attribute] = ValueCounts.of_column(stored)
        return self._value_counts[attribute]

    def text_bytes(self, column: str) -> int:
        """Returns the approximate size in bytes, as text, of a value of a column, such as `id` or
        `attribute:title`: the longest for numbers, the average for strings and lists.
        """
        text_bytes = self._text_bytes.get(column)
        if text_bytes is None:
            kind = arrow.kind_of(self.batches[0].arrays[column].type)
            if "string" in kind or "list" in kind:
                # The offsets are included: they take about as much as quotes and commas.
                stored = sum(batch.arrays[column].nbytes for batch in self.batches)
                text_bytes = ceil_div(stored, max(1, self.size))
                if "string" not in kind:
                    # Numbers of 8 bytes, each of which may be as long as the longest text.
                    text_bytes *= _NUMBER_TEXT_BYTES // 8
            else:
                text_bytes = _NUMBER_TEXT_BYTES
            self._text_bytes[column] = text_bytes
        return text_bytes

    def arrays(self, positions: Positions, columns: Sequence[str]) -> dict[str, Any]:
        """Copies what some columns hold at [m] int64 positions.

        Args:
          positions: The positions, in any order.
          columns: Names as in `types`.

        Returns:
          A `pyarrow.Array` of m values by column.

        Raises:
          RowOutOfRange: A position is negative or past the end.
        """
        return self._select(positions).arrays(columns)

    def _checked(self, positions: Positions) -> Positions:
        positions = np.asarray(positions, np.int64)
        # As unsigned numbers, negative positions are past the end, too: one comparison finds both.
        is_outside = positions.view(np.uint64) >= np.uint64(self.size)
        if np.count_nonzero(is_outside):
            raise RowOutOfRange(
                f"position {positions[is_outside][0]} was read; the store holds {self.size} "
                "candidates"
            )
        return positions

    def _select(self, positions: Positions) -> _Selection:
        """Returns which candidates of which batches are at positions, which are checked."""
        positions = self._checked(positions)
        batches = self.batches
        starts = self._starts
        if len(batches) == 1 or not np.count_nonzero(positions >= starts[1]):
            return _Selection([_BatchSelection(batches[0], positions)])

        # By batch: `take` of a table would join all its batches first.
        numbers = starts[1:].searchsorted(positions, side="right")
        selections = []
        indices_by_batch = []
        for number in sorted(set(numbers.tolist())):
            (indices,) = (numbers == number).nonzero()
            indices_by_batch.append(indices)
            selections.append(_BatchSelection(batches[number], positions[indices] - starts[number]))
        return _Selection(selections, np.concatenate(indices_by_batch))


@dataclass(frozen=True, eq=False)
class _BatchSelection:
    """Candidates of one batch, by their positions in it."""

    batch: ColumnBatch
    positions: Positions


class _Selection:
    """Candidates by batch."""

    def __init__(
        self, selections: Sequence[_BatchSelection], order: Positions | None = None
    ) -> None:
        """Takes the candidates.

        Args:
          selections: The candidates of each batch.
          order: [m], the index in the result of each candidate, in the order of the batches; None:
            there is one batch.
        """
        self._selections = selections
        self._order = order

    def numbers(self, column: str) -> NDArray[Any]:
        """Returns the one number that each candidate has in a column, [m]."""
        by_batch = [
            selection.batch.numbers[column].take(selection.positions)
            for selection in self._selections
        ]
        if self._order is None:
            return by_batch[0]
        numbers = np.empty(self._order.size, by_batch[0].dtype)
        numbers[self._order] = np.concatenate(by_batch)
        return numbers

    def arrays(self, columns: Sequence[str]) -> dict[str, Any]:
        """Returns a `pyarrow.Array` of m values by column."""
        if not columns:
            return {}
        import pyarrow as pa

        positions = [pa.array(selection.positions) for selection in self._selections]
        # `order` scatters, and Arrow can only gather: the inverse of the order gathers.
        inverse = None
        if self._order is not None:
            inverse = pa.array(np.argsort(self._order))
        arrays = {}
        for column in columns:
            by_batch = [
                selection.batch.arrays[column].take(indices)
                for selection, indices in zip(self._selections, positions, strict=True)
            ]
            if inverse is None:
                arrays[column] = by_batch[0]
            else:
                arrays[column] = pa.concat_arrays(by_batch).take(inverse)
        return arrays


def check_feature(table: Any, name: str, where: str) -> None:
    """Raises FormatError if a feature of a `pyarrow.Table`, or the weights of it, are not as the
    format says; `where` names the table.
    """
    import pyarrow as pa

    stored = arrow.column(table, f"feature:{name}", where)
    values = _flat(stored)
    # Neither a list nor a value in one may be null.
    null_count = values.null_count
    if values is not stored:
        null_count += stored.null_count
    if null_count or arrow.kind_of(values.type) not in ("int64", "string", "float"):
        raise FormatError(
            f"{where} has feature {name!r} of {stored.type} with {null_count} nulls; "
            "int64, string or float, or lists of them, without nulls were expected"
        )
    if f"weights:{name}" not in table.column_names:
        return
    weights = arrow.column(table, f"weights:{name}", where)
    flat = _flat(weights)
    fit = (
        len(flat) == len(values)
        and flat.type == pa.float32()
        and not flat.null_count
        and not weights.null_count
    )
    # As many weights as values, but in other lists, would belong to other candidates.
    if fit and pa.types.is_large_list(stored.type):
        fit = pa.types.is_large_list(weights.type) and all(
            value_lists.offsets.equals(weight_lists.offsets)
            for value_lists, weight_lists in zip(stored.chunks, weights.chunks, strict=True)
        )
    if not fit:
        raise FormatError(
            f"{where} has weights of feature {name!r} that do not lie beside its values, one float "
            "each"
        )


def column_of(stored: Any, weights: Any) -> Column:
    """Returns the column of one feature.

    Args:
      stored: A `pyarrow.Array` of values, of lists of one length, or of lists of any length.
      weights: The weights, in the same form; None: there are none.
    """
    import pyarrow as pa

    flat_weights = None
    if weights is not None:
        flat_weights = arrow.values(_flat(weights))
    offsets = None
    if pa.types.is_large_list(stored.type):
        # The offsets of a slice count from the array that it was cut from.
        offsets = arrow.values(stored.offsets)
        offsets = offsets - offsets[0]
    return Column(arrow.values(_flat(stored)), offsets, flat_weights)


def _flat(stored: Any) -> Any:
    """Returns the values of lists one after the other; of single values, the same."""
    import pyarrow as pa

    if not (pa.types.is_large_list(stored.type) or pa.types.is_fixed_size_list(stored.type)):
        return stored
    if isinstance(stored, pa.ChunkedArray):
        return pa.chunked_array(
            [chunk.flatten() for chunk in stored.chunks], stored.type.value_type
        )
    return stored.flatten()
