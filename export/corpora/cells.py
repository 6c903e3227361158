"""One column of a batch of a corpus: its values, checked. An error names the file, the row and the
column of the value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from bundle.features.columns import Column
from bundle.format.manifest import DenseFeature, Feature, GraphIds, IdRule
from export.corpora.files import Rows
from export.errors import NotConvertible

_INT64 = np.iinfo(np.int64)

INTEGER = r"^(0|-?[1-9][0-9]*)$"
"""A whole number spelled as Python prints it, so that the number and the text say the same."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
"""A finite number: NaN and infinities are no numbers of a feature."""


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
          NotConvertible: A value is wrong; names the first one.
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
        raise NotConvertible(f"{subject} {problem}")

    def ids(self, integers_only: bool) -> NDArray[Any]:
        """Returns int64, or objects holding str where some value is no integer and the id rule
        takes strings.
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
        """Returns objects holding str."""
        self._expect(self.is_text, "a string")
        values = np.empty(len(self.array), object)
        values[:] = self.array.to_pylist()
        return values

    def integers(self) -> NDArray[np.int64]:
        """Returns int64."""
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
        """Returns finite float32."""
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
    """Returns the cells of a column.

    Args:
      rows: The rows.
      column: The name of the column.
      separator: The separator of the values of a cell, which is then a list; None: a cell is one
        value.

    Raises:
      NotConvertible: An Example has several values, and no separator is given.
    """
    array = rows.columns[column]
    # Columns of Parquet may be dictionaries, which the checks of values do not take.
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if rows.format == "csv":
        # CSV has no nulls: an empty cell is one, or an empty list.
        values = array
        empty = pa.scalar(None, pa.string())
        if separator is not None:
            values = pc.split_pattern(array, pattern=separator)
            empty = pa.scalar([], pa.list_(pa.string()))
        array = pc.if_else(pc.equal(array, ""), empty, values)
    if rows.format == "tfrecord" and separator is None:
        # Every feature of an Example is a list.
        problem = "holds several values; one was expected"
        if rows.records is None:
            problem += "; if records hold many candidates, set prebatched = true"
        return _single_values(Cells(array, rows, column), problem)
    return Cells(array, rows, column)


def _single_values(lists: Cells, problem: str) -> Cells:
    """Returns the value of each list; null where a list is empty.

    Raises:
      NotConvertible: A list holds several values, with `problem` in the message.
    """
    lists.reject(pc.greater(pc.list_value_length(lists.array), 1), problem)
    lengths = pc.fill_null(pc.list_value_length(lists.array), 0).to_numpy()
    # A masked position takes a null, so that every row keeps one value.
    positions = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
    return replace(lists, array=lists.array.flatten().take(positions))


def feature_column(
    rows: Rows, column: str, input_name: str, feature: Feature, separator: str
) -> Column:
    """Returns the column of an input as a caller would send it, of any length.

    Args:
      rows: The rows.
      column: The name of the column.
      input_name: The name of the input.
      feature: A feature that reads the input.
      separator: The separator of the values of a CSV cell.

    Raises:
      NotConvertible: A value does not fit the feature.
    """
    cells, are_lists = _cells_of_feature(rows, column, feature, separator)
    array = cells.array
    if not are_lists and feature.default is None and feature.kind != "bag":
        remedy = f"fill in the cell, or set features.{input_name}.default"
        cells.reject(array.is_null(), f"is empty, and its feature has no default: {remedy}")

    if are_lists:
        counts = pc.fill_null(pc.list_value_length(array), 0)
        flat_array = array.flatten()
    else:
        counts = array.is_valid().cast(pa.int64())
        flat_array = array.drop_null()
    lengths = counts.to_numpy().astype(np.int64)
    offsets = None
    # Where each row has one value, no offsets are needed.
    if are_lists or not lengths.all():
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = Cells(flat_array, rows, column, np.repeat(np.arange(len(rows)), lengths))
    if not isinstance(feature, DenseFeature):
        return Column(_ids(flat, feature.ids), offsets)
    # Other lists are padded and cut by the reader of the corpus, which counts them.
    if are_lists and feature.input_length is None:
        _check_lengths(rows, column, feature, lengths)
    if feature.dtype == "float32":
        return Column(flat.floats(), offsets)
    if feature.dtype == "string":
        return Column(flat.texts(), offsets)
    return Column(flat.integers(), offsets)


def _cells_of_feature(
    rows: Rows, column: str, feature: Feature, separator: str
) -> tuple[Cells, bool]:
    """Returns the cells of a feature's column, and whether each is a list."""
    takes_lists = holds_lists(feature)
    cells = cells_of(rows, column, separator if takes_lists else None)
    kind = cells.array.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and not takes_lists:
        # Programs that write lists of a fixed length write a single value as a list, too.
        return _single_values(cells, "holds several values; one was expected"), False
    is_number = types.is_integer(kind) or types.is_floating(kind)
    # A number is a bag of one id, and a null an empty bag.
    if takes_lists and not is_list and not (feature.kind == "bag" and is_number):
        raise NotConvertible(
            f"{rows.within(column)} holds {kind}; a list per candidate was expected for its feature"
        )
    return cells, is_list


def _ids(cells: Cells, rule: IdRule) -> NDArray[Any]:
    """Returns values as a rule of one input takes them; integers as texts where it takes texts."""
    dtype = "int64"
    if isinstance(rule, GraphIds):
        dtype = rule.dtype
    if dtype == "float32":
        return cells.floats()
    if dtype != "string":
        return cells.ids(integers_only=dtype != "int64_or_string")
    if types.is_integer(cells.array.type):
        cells = replace(cells, array=cells.array.cast(pa.string()))
    return cells.texts()


def _check_lengths(
    rows: Rows, column: str, feature: DenseFeature, lengths: NDArray[np.int64]
) -> None:
    """Rejects a row with more or fewer values than a dense feature takes."""
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
        raise NotConvertible(
            f"{rows.at(column, row)} has {lengths[row]} values; a feature of shape {feature.shape} "
            f"takes {expected}"
        )


def attribute_array(rows: Rows, column: str, separator: str | None) -> Any:
    """Returns the values of an attribute as an Arrow array.

    Args:
      rows: The rows.
      column: The name of the column.
      separator: The separator of the values of a text; None: a text is one value.
    """
    array = cells_of(rows, column, separator).array
    if types.is_large_list(array.type) and types.is_null(array.type.value_type):
        # A list that is empty in all of a batch has no type of its own.
        return array.cast(pa.large_list(pa.large_string()))
    return array


def holds_lists(feature: Feature) -> bool:
    """Returns whether a feature takes several values of a candidate."""
    if isinstance(feature, DenseFeature):
        return feature.shape != ()
    return feature.kind != "single"
