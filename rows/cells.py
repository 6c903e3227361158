"""One column of a batch of rows: its values, checked. An error names the file, the row and the
column of the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from bundle.features.columns import Column
from bundle.format.features import DenseFeature, Feature, sent_dtype
from bundle.tables.offsets import offsets_of
from bundle.text_arrays import text_array
from rows.batches import Rows
from rows.errors import ValueRejected

_INT64 = np.iinfo(np.int64)

INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
"""A whole number spelled as Python prints it, so that the number and the text say the same; with
more digits than an int64, it is a text.
"""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
"""A finite number: NaN and infinities are no numbers of a feature."""

NUMERIC = pa.int64(), pa.float64()
"""The types that the text of a column may have in all of a file, the narrowest first."""
LIST_SEPARATOR = "|"
"""The separator of the values of a CSV cell, where nothing states another one."""


@dataclass(frozen=True)
class Cells:
    """Values of a column.

    Attributes:
      array: A `pyarrow.Array`; null where a cell is empty.
      rows, column: The rows and the column that the values come from.
      owners: [m] int64, the row of each value; None: each row has one value.
    """

    array: Any
    rows: Rows
    column: str
    owners: NDArray[np.int64] | None = None

    @property
    def is_text(self) -> bool:
        """Whether values are strings."""
        return bool(types.is_string(self.array.type) or types.is_large_string(self.array.type))

    def reject(self, wrong: Any, problem: str) -> None:
        """Rejects the column if one of its values is wrong.

        Args:
          wrong: [m] a `pyarrow.BooleanArray`, whether each value is wrong.
          problem: The problem of a wrong value, as the end of a sentence.

        Raises:
          ValueRejected: A value is wrong; names the first one.
        """
        position = pc.index(wrong, True).as_py()
        if position < 0:
            return
        row = position
        if self.owners is not None:
            row = int(self.owners[position])
        subject = self.rows.at(self.column, row)
        value = self.array[position].as_py()
        if value is not None:
            subject += f": {str(value)[:80]!r}"
        raise ValueRejected(f"{subject} {problem}", self.column)

    def flat(self) -> tuple[Cells, NDArray[np.int64]]:
        """Returns the values of all rows, end to end, and [n] int64, how many each row has.

        Raises:
          ValueRejected: Bytes are not UTF-8.
        """
        array = self.array
        if is_list(array.type):
            lengths = _lengths(array)
            array = array.flatten()
            while is_list(array.type):
                # The values of a row are those of all of its lists.
                ends = offsets_of(_lengths(array))[offsets_of(lengths)]
                lengths = np.diff(ends)
                array = array.flatten()
        else:
            # A value is a list of one, and a null an empty list.
            lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
            array = array.drop_null()
        if types.is_binary(array.type) or types.is_large_binary(array.type):
            # Programs that write TensorFlow's strings write bytes.
            try:
                array = array.cast(pa.large_string())
            except pa.ArrowInvalid as problem:
                text = f"{self.rows.within(self.column)} holds bytes that are no UTF-8"
                raise ValueRejected(text, self.column) from problem
        owners = np.repeat(np.arange(len(self.rows)), lengths)
        return replace(self, array=array, owners=owners), lengths

    def ids(self, integers_only: bool) -> NDArray[Any]:
        """Returns [n] int64, or [n] object holding str where some value is no integer and the id
        rule takes strings.

        Raises:
          ValueRejected: A value is empty or of another kind, or not the integer that the rule
            takes.
        """
        self._expect(self.is_text or types.is_integer(self.array.type), "an id, integer or string,")
        if self.is_text:
            self.reject(pc.equal(self.array, ""), "is an empty id")
        if integers_only or not self.is_text:
            return self.integers()
        if pc.all(pc.match_substring_regex(self.array, INTEGER)).as_py():
            return self.integers()
        return self.texts()

    def texts(self) -> NDArray[Any]:
        """Returns [n] object holding str; raises ValueRejected if the values are no strings."""
        self._expect(self.is_text, "a string")
        return text_array(self.array.to_pylist())

    def integers(self) -> NDArray[np.int64]:
        """Returns [n] int64; raises ValueRejected if a value is no integer, or beyond int64."""
        self._expect(self.is_text or types.is_integer(self.array.type), "an integer")
        if self.is_text:
            self.reject(
                pc.invert(pc.match_substring_regex(self.array, INTEGER)),
                "is no integer, which was expected",
            )
        try:
            values: NDArray[np.int64] = self.array.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            # Arrow does not say which value it is.
            numbers = [int(value) for value in self.array.to_pylist()]
            is_beyond = [not _INT64.min <= number <= _INT64.max for number in numbers]
            self.reject(pa.array(is_beyond), "is beyond int64")
            raise
        return values

    def floats(self) -> NDArray[np.float32]:
        """Returns [n] finite float32; raises ValueRejected if a value is none or does not fit."""
        kind = self.array.type
        self._expect(self.is_text or types.is_integer(kind) or types.is_floating(kind), "a number")
        if self.is_text:
            wrong = pc.invert(pc.match_substring_regex(self.array, NUMBER))
            self.reject(wrong, "is no finite number, which was expected")
        # Integers above 2^53 lose digits, which float32 could not hold anyway.
        wide = self.array.cast(pa.float64(), safe=False).to_numpy()
        # A value that float32 cannot hold becomes infinite, and is rejected with its row below.
        with np.errstate(over="ignore"):
            values: NDArray[np.float32] = wide.astype(np.float32)
        self.reject(pa.array(~np.isfinite(values)), "is no finite float32, which was expected")
        return values

    def _expect(self, fits: bool, expected: str) -> None:
        if not fits:
            self.reject(self.array.is_valid(), f"is {self.array.type}; {expected} was expected")
        self.reject(self.array.is_null(), f"is null; {expected} was expected")


def cells_of(rows: Rows, column: str, separator: str | None = None) -> Cells:
    """Returns the cells of a column: values, or lists of any depth.

    Args:
      rows: The rows.
      column: The name of the column.
      separator: The separator of the values of a CSV cell, which is then a list; None: a cell is
        one value.
    """
    array = rows.columns[column]
    # Columns of Parquet may be dictionaries, which the checks of values do not take.
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if rows.file.format == "csv":
        # CSV has no nulls: an empty cell is one, or an empty list.
        values = array
        empty = pa.scalar(None, pa.string())
        if separator is not None:
            values = pc.split_pattern(array, pattern=separator)
            empty = pa.scalar([], pa.list_(pa.string()))
        array = pc.if_else(pc.equal(array, ""), empty, values)
    return Cells(array, rows, column)


def single_cells(rows: Rows, column: str) -> Cells:
    """Returns the cells of a column with one value in each row; null where a row has none.

    Raises:
      ValueRejected: A row has several values.
    """
    cells = cells_of(rows, column)
    # Every feature of an Example is a list, and programs that write lists of a fixed length write a
    # single value as a list, too.
    if not is_list(cells.array.type):
        return cells
    problem = "holds several values; one was expected"
    if rows.file.format == "tfrecord" and rows.records is None:
        problem += "; if records hold many candidates, set prebatched = true"
    cells.reject(pc.greater(pc.list_value_length(cells.array), 1), problem)
    lengths = _lengths(cells.array)
    # A masked position takes a null, so that every row keeps one value.
    positions = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
    return replace(cells, array=cells.array.flatten().take(positions))


def feature_column(
    rows: Rows, column: str, input_name: str, feature: Feature, separator: str
) -> Column:
    """Returns the column of an input as a caller would send it, of any length.

    Args:
      rows: The rows.
      column: The name of the column.
      input_name: The name of the input.
      feature: A feature that reads the input; see `input_entry`.
      separator: The separator of the values of a CSV cell.

    Raises:
      ValueRejected: A value does not fit the feature.
    """
    takes_lists = holds_lists(feature)
    if takes_lists:
        cells = cells_of(rows, column, separator)
        if cells.is_text:
            is_joined = pc.match_substring(cells.array, separator)
            cells.reject(is_joined, "is a text; a list was expected for its feature")
    else:
        cells = single_cells(rows, column)
        if feature.default is None:
            remedy = f"fill in the cell, or set features.{input_name}.default"
            problem = f"is empty, and its feature has no default: {remedy}"
            cells.reject(cells.array.is_null(), problem)
    flat, lengths = cells.flat()
    # Other lists are padded and cut by the caller, which counts them.
    if takes_lists and isinstance(feature, DenseFeature) and feature.input_length is None:
        _check_lengths(rows, column, feature, lengths)

    values = _typed_values(flat, input_name, feature)
    # Where each row has one value, no offsets are needed.
    offsets = None
    if takes_lists or not lengths.all():
        offsets = offsets_of(lengths)
    return Column(values, offsets)


def _typed_values(flat: Cells, input_name: str, feature: Feature) -> NDArray[Any]:
    """Returns values as a feature takes them."""
    dtype = sent_dtype(feature, input_name)
    if dtype == "float32":
        return flat.floats()
    if dtype == "string":
        # Integers are texts of ids, where a feature takes ids as texts.
        if not isinstance(feature, DenseFeature) and types.is_integer(flat.array.type):
            flat = replace(flat, array=flat.array.cast(pa.string()))
        return flat.texts()
    if isinstance(feature, DenseFeature):
        # Requests send 0 or 1 for a bool.
        if types.is_boolean(flat.array.type):
            flat = replace(flat, array=flat.array.cast(pa.int8()))
        return flat.integers()
    return flat.ids(integers_only=dtype != "int64_or_string")


def sent_values(rows: Rows, column: str, dtype: str, *, lists: bool) -> list[Any]:
    """Returns the value or list of each row as a JSON request has it; None: there is no value.

    Columns of Parquet and JSON lines are sent as they are: whoever computes the request checks
    them.

    Args:
      rows: The rows.
      column: The name of the column.
      dtype: The type of the values, as `sent_dtype` returns it.
      lists: Whether a row has a list.

    Raises:
      ValueRejected: A value is of another type.
    """
    if rows.file.format in {"parquet", "jsonl"}:
        return list(rows.columns[column].to_pylist())
    if lists:
        flat, lengths = cells_of(rows, column, LIST_SEPARATOR).flat()
    else:
        flat, lengths = single_cells(rows, column).flat()
    read = {"float32": flat.floats, "string": flat.texts}.get(dtype, flat.integers)
    if dtype == "int64_or_string":
        values = flat.ids(integers_only=False).tolist()
    else:
        values = read().tolist()
    value_lists = [values[first:last] for first, last in pairwise(offsets_of(lengths).tolist())]
    if lists:
        return value_lists
    return [next(iter(single), None) for single in value_lists]


def _lengths(lists: Any) -> NDArray[np.int64]:
    """Returns [n] int64, the length of each list, 0 of a null."""
    lengths: NDArray[Any] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return lengths.astype(np.int64)


def _check_lengths(
    rows: Rows, column: str, feature: DenseFeature, lengths: NDArray[np.int64]
) -> None:
    """Rejects a row with more or fewer values than a dense feature takes."""
    if feature.take == "lengths":
        return
    size = int(np.prod(feature.shape, dtype=np.int64))
    if feature.take in ("padded", "weights"):
        expected = f"{size} at most"
        is_wrong = lengths > size
    else:
        expected = str(size)
        is_wrong = lengths != size
        if feature.default is not None:
            # A row without values takes the default.
            is_wrong &= lengths != 0
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise ValueRejected(
            f"{rows.at(column, row)} has {lengths[row]} values; a feature of shape {feature.shape} "
            f"takes {expected}",
            column,
        )


def attribute_array(rows: Rows, column: str, separator: str | None) -> Any:
    """Returns the values of an attribute as an Arrow array.

    Args:
      rows: The rows.
      column: The name of the column.
      separator: The separator of the values of a text; None: a text is one value.
    """
    if separator is None and rows.file.format == "tfrecord":
        return single_cells(rows, column).array
    array = cells_of(rows, column, separator).array
    if is_list(array.type) and types.is_null(array.type.value_type):
        # A list that is empty in all of a batch has no type of its own.
        return array.cast(pa.large_list(pa.large_string()))
    return array


def text_rank(array: Any) -> int:
    """Returns the type of a column of texts: its index in NUMERIC, or the index past the end."""
    if pc.all(pc.match_substring_regex(array, INTEGER)).as_py():
        try:
            array.cast(pa.int64())
        except pa.ArrowInvalid:
            # Integers beyond int64 are floats.
            return NUMERIC.index(pa.float64())
        return NUMERIC.index(pa.int64())
    if pc.all(pc.match_substring_regex(array, NUMBER)).as_py():
        return NUMERIC.index(pa.float64())
    return len(NUMERIC)


def plain_values(rows: Rows, count: int) -> dict[str, list[Any]]:
    """Returns the first values of each column, where nothing states what it holds.

    Texts of CSV that are all numbers are numbers, and lists of TFRecords that all hold one value
    are single values.
    """
    columns: dict[str, list[Any]] = {}
    for column in rows.columns:
        array = cells_of(rows, column).array[:count]
        if rows.file.format == "csv" and text_rank(array) < len(NUMERIC):
            array = array.cast(NUMERIC[text_rank(array)])
        if rows.file.format == "tfrecord":
            lengths = pc.list_value_length(array)
            if pc.all(pc.equal(lengths, 1)).as_py():
                array = array.flatten()
        columns[column] = array.to_pylist()
    return columns


def joined_values(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns the values of several batches of a column, end to end: [sum of the sizes].

    Args:
      parts: Values that `Cells` returns, at least one array. If one holds texts, integers become
        texts.
    """
    # Without values, an array has no type of its own.
    filled = [part for part in parts if part.size] or [parts[0]]
    if len({part.dtype == object for part in filled}) > 1:
        filled = [part.astype(str).astype(object) for part in filled]
    return np.concatenate(filled)


def holds_lists(feature: Feature) -> bool:
    """Returns whether a feature takes several values of a row, if only to count them."""
    if isinstance(feature, DenseFeature):
        return feature.take != "values" or feature.shape != ()
    return feature.kind != "single"


def is_list(kind: Any) -> bool:
    """Returns whether a `pyarrow.DataType` is one of lists."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
