"""One column of a batch of a corpus: what each value says, checked; a wrong one is named by file,
row and column.
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

INTEGER = r"^(0|-?[1-9][0-9]*)$"
"""A whole number spelled as Python prints it, so that the number and the text say the same."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class Cells:
    """Values of a column.

    Attributes:
      array: A `pyarrow.Array`; null where a cell is empty.
      rows, column: Where they come from.
      owners: [m] the row of each value; None: each row has one.
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
        """Raises NotConvertible for the first value that is wrong, if one is."""
        position = pc.index(wrong, True).as_py()
        if position >= 0:
            row = position if self.owners is None else int(self.owners[position])
            value = self.array[position].as_py()
            shown = "" if value is None else f": {str(value)[:80]!r}"
            raise NotConvertible(f"{self.rows.at(self.column, row)}{shown} {problem}")

    def ids(self, integers_only: bool) -> NDArray[Any]:
        """Returns int64, or objects holding str where some value is no integer and the id rule
        takes strings.
        """
        self._expect(self.is_text or types.is_integer(self.array.type), "an id, integer or string,")
        if self.is_text:
            self.reject(pc.equal(self.array, ""), "is an empty id")
        if (
            integers_only
            or not self.is_text
            or pc.all(pc.match_substring_regex(self.array, INTEGER)).as_py()
        ):
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
            beyond = [not -(1 << 63) <= int(value) < 1 << 63 for value in self.array.to_pylist()]
            self.reject(pa.array(beyond), "is beyond int64")
            raise
        return values

    def floats(self) -> NDArray[np.float32]:
        """Returns finite float32."""
        kind = self.array.type
        self._expect(self.is_text or types.is_integer(kind) or types.is_floating(kind), "a number")
        if self.is_text:
            wrong = pc.invert(pc.match_substring_regex(self.array, NUMBER))
            self.reject(wrong, "is no finite number, which was expected")
        wide = self.array.cast(pa.float64(), safe=False).to_numpy()
        with np.errstate(over="ignore"):
            values: NDArray[np.float32] = wide.astype(np.float32)
        self.reject(pa.array(~np.isfinite(values)), "is no finite float32, which was expected")
        return values

    def _expect(self, fits: bool, expected: str) -> None:
        if not fits:
            self.reject(self.array.is_valid(), f"is {self.array.type}; {expected} was expected")
        self.reject(self.array.is_null(), f"is null; {expected} was expected")


def cells_of(rows: Rows, column: str, separator: str | None = None) -> Cells:
    """Returns the cells of a column: as lists where a separator is given, else one value each.

    Raises:
      NotConvertible: An Example has several values.
    """
    array = rows.columns[column]
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if rows.format == "csv":
        cells = array
        none = pa.scalar(None, pa.string())
        if separator is not None:
            cells = pc.split_pattern(array, pattern=separator)
            none = pa.scalar([], pa.list_(pa.string()))
        array = pc.if_else(pc.equal(array, ""), none, cells)
    if rows.format == "tfrecord" and separator is None:
        cure = (
            ""
            if rows.records is not None
            else "; if records hold many candidates, say prebatched = true"
        )
        several = pc.greater(pc.list_value_length(array), 1)
        Cells(array, rows, column).reject(several, f"holds several values; one was expected{cure}")
        array = pc.list_slice(array, 0, 1, return_fixed_size_list=True).flatten()
    return Cells(array, rows, column)


def feature_column(rows: Rows, column: str, feature: Feature, separator: str) -> Column:
    """Returns a feature's column as a caller would send it, of any length.

    Raises:
      NotConvertible: A value does not fit the feature.
    """
    lists = holds_lists(feature)
    cells = cells_of(rows, column, separator if lists else None)
    array = cells.array
    kind = cells.array.type
    if lists and not (
        types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    ):
        if feature.kind != "bag" or not (types.is_integer(kind) or types.is_floating(kind)):
            raise NotConvertible(
                f"{rows.where}, column {column!r} holds {kind}; a list per candidate was expected "
                "for its feature"
            )
        lists = False  # one of each candidate, or none
    if not lists and feature.default is None and feature.kind != "bag":
        cells.reject(array.is_null(), "is empty, and its feature has no default")
    counts = (
        pc.fill_null(pc.list_value_length(array), 0) if lists else array.is_valid().cast(pa.int64())
    )
    lengths = counts.to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]) if lists or not lengths.all() else None
    flat = Cells(
        array.flatten() if lists else array.drop_null(),
        rows,
        column,
        np.repeat(np.arange(len(rows)), lengths),
    )
    if not isinstance(feature, DenseFeature):
        return Column(_ids(flat, feature.ids), offsets)
    if lists and feature.input_length is None:
        _check_lengths(rows, column, feature, lengths)
    values = {"float32": flat.floats, "string": flat.texts}.get(feature.dtype, flat.integers)()
    return Column(values, offsets)


def _ids(cells: Cells, rule: IdRule) -> NDArray[Any]:
    """Returns values as a rule of one input takes them; integers as texts where it takes texts."""
    dtype = rule.dtype if isinstance(rule, GraphIds) else "int64"
    if dtype == "float32":
        return cells.floats()
    if dtype == "string" and types.is_integer(cells.array.type):
        return replace(cells, array=cells.array.cast(pa.string())).texts()
    return cells.texts() if dtype == "string" else cells.ids(dtype != "int64_or_string")


def _check_lengths(
    rows: Rows, column: str, feature: DenseFeature, lengths: NDArray[np.int64]
) -> None:
    size = int(np.prod(feature.shape, dtype=np.int64))
    most = feature.take in ("padded", "weights")
    wrong = (
        lengths > size if most else (lengths != size) & ((lengths != 0) | (feature.default is None))
    )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise NotConvertible(
            f"{rows.at(column, row)} has {lengths[row]} values; a feature of shape {feature.shape} "
            f"takes {size}{' at most' if most else ''}"
        )


def attribute_array(rows: Rows, column: str, separator: str | None) -> Any:
    """Returns an Arrow array; of text, strings, or lists of strings where a separator is given."""
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
