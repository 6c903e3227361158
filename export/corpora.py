"""A candidate corpus as the user has it, CSV or Parquet -> ids, feature columns and attributes, each value checked.

Rows are told as a reader counts them: row 1 is the first candidate, in a CSV file the line after the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Column
from bundle.manifest import BucketIds, DenseFeature, Feature, IdentityIds
from export.errors import NotConvertible, UsageError
from export.settings import CorpusPart

_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class CorpusContent:
    """What a corpus file says, in its order.

    Attributes:
      ids: a `pyarrow.Array` of int64 or strings, distinct, without nulls.
      features: column by feature.
      attributes: `pyarrow.Array` by attribute.
    """

    ids: Any
    features: dict[str, Column]
    attributes: dict[str, Any]


def read_corpus(path: Path, name: str, part: CorpusPart, features: Mapping[str, Feature]) -> CorpusContent:
    """Reads the columns that the recipe names.

    A CSV column of whole numbers is read as integers, else as text; the values of a bag or sequence are split at
    `part.list_separator`, and an empty cell is an empty list. An attribute whose column feeds a bag is a list, too. An
    empty or null cell of a single or dense feature takes the feature's default.

    Args:
      path: a `.csv` or `.parquet` file.
      name: of the corpus.
      part: what the recipe says of it.
      features: every feature of the model.
    Raises:
      UsageError: no such file, not of these kinds, unreadable, or without a column or feature that the recipe names.
      NotConvertible: no candidates, or a value that is no id or does not fit its feature; names row, column and value.
    """
    for feature in part.features:
        if feature not in features:
            raise UsageError(
                f"candidates.{name}.features: the model has no feature {feature!r}; it has {', '.join(features)}"
            )
    is_csv = path.suffix.lower() == ".csv"
    table = _read_csv(path, name, part) if is_csv else _read_parquet(path, name, part)
    if table.num_rows == 0:
        raise NotConvertible(f"corpus {name!r}: {path.name} holds no candidates")
    columns = {
        column: _Cells(table.column(column).combine_chunks(), f"corpus {name!r}, column {column!r}", is_csv)
        for column in table.column_names
    }
    lists = {part.features[key] for key in part.features if _holds_lists(features[key])}
    return CorpusContent(
        columns[part.id].ids(),
        {key: columns[column].feature(features[key], part.list_separator) for key, column in part.features.items()},
        {
            column: columns[column].attribute(part.list_separator if column in lists else None)
            for column in part.attributes
        },
    )


def _wanted(part: CorpusPart) -> list[str]:
    return list(dict.fromkeys([part.id, *part.features.values(), *part.attributes]))


def _check_columns(found: list[str], path: Path, name: str, part: CorpusPart) -> None:
    for column in _wanted(part):
        if found.count(column) != 1:
            times = "no" if column not in found else f"{found.count(column)} times a"
            raise UsageError(f"corpus {name!r}: {path.name} has {times} column {column!r}; it has {', '.join(found)}")


def _read_csv(path: Path, name: str, part: CorpusPart) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=parse) as header:
            found = header.schema.names
        _check_columns(found, path, name, part)
        # As text: what a column holds is known only when all of it was seen.
        convert = csv.ConvertOptions(
            include_columns=_wanted(part),
            column_types=dict.fromkeys(_wanted(part), pa.string()),
            strings_can_be_null=False,
        )
        with csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            return pa.Table.from_batches(list(reader), reader.schema)
    except FileNotFoundError as problem:
        raise UsageError(f"corpus {name!r}: file {path} does not exist") from problem
    except pa.ArrowInvalid as problem:
        if "Empty CSV file" in str(problem):
            raise NotConvertible(f"corpus {name!r}: {path.name} holds no candidates, not even a header") from problem
        raise UsageError(f"corpus {name!r}: {path.name} is no readable CSV file: {problem}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"corpus {name!r}: {path} cannot be read: {problem}") from problem


def _read_parquet(path: Path, name: str, part: CorpusPart) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    if path.suffix.lower() != ".parquet":
        raise UsageError(f"corpus {name!r}: {path.name} is neither a .csv nor a .parquet file")
    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, path, name, part)
            wanted = _wanted(part)
            schema = pa.schema([file.schema_arrow.field(column) for column in wanted])
            batches = [batch.select(wanted) for batch in file.iter_batches(_BATCH_ROWS, columns=wanted)]
            return pa.Table.from_batches(batches, schema)
    except FileNotFoundError as problem:
        raise UsageError(f"corpus {name!r}: file {path} does not exist") from problem
    except (pa.ArrowException, OSError) as problem:
        raise UsageError(f"corpus {name!r}: {path.name} is no readable Parquet file: {problem}") from problem


class _Cells:
    """One column of the file."""

    def __init__(self, array: Any, where: str, is_csv: bool) -> None:
        import pyarrow as pa

        self._array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        self._where = where
        self._is_csv = is_csv

    def ids(self) -> Any:
        """Returns the candidates' ids: int64, or strings."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array, kind = self._array, self._array.type
        absent = pc.equal(array, "") if self._is_csv else array.is_null()
        self._refuse(absent, "is null; every candidate needs an id")
        if pa.types.is_floating(kind):
            self._refuse(pc.is_valid(array), "is a float; ids are integers or strings")
        if self._is_csv:
            array = self._csv_ids(array)
        elif pa.types.is_integer(kind):
            array = self._int64(array)
        elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise NotConvertible(f"{self._where} holds {kind}; ids are integers or strings")
        self._refuse_duplicates(array)
        return array

    def feature(self, feature: Feature, separator: str) -> Column:
        """Returns the column as a caller would send it."""
        cells, offsets = self._flat(feature, separator)
        if isinstance(feature, DenseFeature):
            size = int(np.prod(feature.shape, dtype=np.int64))
            if offsets is not None:
                wrong = (np.diff(offsets) != size) & ((np.diff(offsets) != 0) | (feature.default is None))
                if wrong.any():
                    row = int(np.argmax(wrong))
                    raise NotConvertible(
                        f"{self._where}, row {row + 1} has {np.diff(offsets)[row]} values; "
                        f"a feature of shape {feature.shape} takes {size}"
                    )
            values = cells.floats() if feature.dtype == "float32" else cells.integers()
        elif isinstance(feature.ids, BucketIds):
            values = cells.floats()
        else:
            values = cells.feature_ids(integers_only=isinstance(feature.ids, IdentityIds))
        return Column(values, offsets)

    def attribute(self, separator: str | None) -> Any:
        """Returns an Arrow array; of text, what all cells are: integers, numbers or strings, empty cells null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._is_csv:
            return self._array
        if separator is not None:
            return pc.if_else(pc.equal(self._array, ""), pa.scalar([], pa.list_(pa.string())), self._split(separator))
        filled = pc.if_else(pc.equal(self._array, ""), pa.scalar(None, pa.string()), self._array)
        for pattern, kind in ((_INTEGER, pa.int64()), (_NUMBER, pa.float64())):
            if pc.all(pc.match_substring_regex(filled, pattern)).as_py() and filled.null_count < len(filled):
                try:
                    return filled.cast(kind)
                except pa.ArrowInvalid:  # beyond int64
                    continue
        return filled

    def _flat(self, feature: Feature, separator: str) -> tuple[_Flat, NDArray[np.int64] | None]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not _holds_lists(feature):
            absent = pc.equal(self._array, "") if self._is_csv else self._array.is_null()
            if not pc.any(absent).as_py():
                return _Flat(self._array, None, self._where), None
            if feature.default is None:
                self._refuse(absent, "is empty, and its feature has no default")
            present = pc.invert(absent).to_numpy(zero_copy_only=False)
            offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int64)
            return _Flat(self._array.filter(pc.invert(absent)), np.flatnonzero(present), self._where), offsets
        array, kind = self._array, self._array.type
        if self._is_csv:
            empty = pc.equal(array, "")
            array = pc.if_else(empty, pa.scalar([], pa.list_(pa.string())), self._split(separator))
        elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise NotConvertible(f"{self._where} holds {kind}; a list per candidate was expected for its feature")
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return _Flat(array.flatten(), np.repeat(np.arange(len(lengths)), lengths), self._where), offsets

    def _split(self, separator: str) -> Any:
        import pyarrow.compute as pc

        return pc.split_pattern(self._array, pattern=separator)

    def _csv_ids(self, array: Any) -> Any:
        import pyarrow.compute as pc

        whole = pc.match_substring_regex(array, _INTEGER)
        if pc.all(whole).as_py():
            return self._int64(array)
        if pc.all(pc.match_substring_regex(array, _NUMBER)).as_py():
            self._refuse(pc.invert(whole), "is a float; ids are integers or strings")
        if pc.any(whole).as_py():
            first = whole[0].as_py()
            here, above = ("text", "integers") if first else ("an integer", "text")
            self._refuse(
                pc.equal(whole, not first),
                f"is {here}, the ids above are {above}; if all are text, write the corpus as Parquet, where the "
                "column's type says so",
            )
        return array

    def _int64(self, array: Any) -> Any:
        return _Flat(array, None, self._where).int64()

    def _refuse_duplicates(self, array: Any) -> None:
        import pyarrow.compute as pc

        counts = pc.value_counts(array)
        if len(counts) == len(array):
            return
        several = counts.field(0).filter(pc.greater(counts.field(1), 1))[0]
        rows = np.flatnonzero(pc.equal(array, several).to_numpy(zero_copy_only=False))[:2] + 1
        raise NotConvertible(
            f"{self._where}: id {several.as_py()!r} stands in rows {rows[0]} and {rows[1]}; ids must be distinct"
        )

    def _refuse(self, wrong: Any, told: str) -> None:
        _Flat(self._array, None, self._where).refuse(wrong, told)


class _Flat:
    """Values that are all of one kind, with the rows they come from."""

    def __init__(self, array: Any, rows: NDArray[np.int64] | None, where: str) -> None:
        self._array, self._rows, self._where = array, rows, where

    def feature_ids(self, integers_only: bool) -> NDArray[Any]:
        """Returns int64, or objects holding str where some value is no integer and the id rule takes strings."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        if pa.types.is_integer(kind):
            return self.integers()
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            self.refuse(self._anything(), f"is {kind}; an id, integer or string, was expected")
        self.refuse(self._array.is_null(), "is null; an id was expected")
        self.refuse(pc.equal(self._array, ""), "is an empty id")
        if integers_only or pc.all(pc.match_substring_regex(self._array, _INTEGER)).as_py():
            return self.integers()
        values = np.empty(len(self._array), object)
        values[:] = self._array.to_pylist()
        return values

    def integers(self) -> NDArray[np.int64]:
        """Returns int64."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        self.refuse(self._array.is_null(), "is null; an integer was expected")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            whole = pc.match_substring_regex(self._array, _INTEGER)
            self.refuse(pc.invert(whole), "is no integer, which was expected")
        elif not pa.types.is_integer(kind):
            self.refuse(self._anything(), f"is {kind}; an integer was expected")
        values: NDArray[np.int64] = self.int64().to_numpy(zero_copy_only=False)
        return values

    def int64(self) -> Any:
        """Returns an Arrow int64 array of what are integers already."""
        import pyarrow as pa

        try:
            return self._array.cast(pa.int64())
        except pa.ArrowInvalid as problem:
            beyond = [not -(1 << 63) <= int(value) < 1 << 63 for value in self._array.to_pylist()]
            self.refuse(pa.array(beyond), "is beyond int64")
            raise NotConvertible(f"{self._where}: {problem}") from problem

    def floats(self) -> NDArray[np.float32]:
        """Returns finite float32."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        self.refuse(self._array.is_null(), "is null; a number was expected")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self.refuse(
                pc.invert(pc.match_substring_regex(self._array, _NUMBER)), "is no finite number, which was expected"
            )
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            self.refuse(self._anything(), f"is {kind}; a number was expected")
        wide = self._array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values: NDArray[np.float32] = wide.astype(np.float32)
        self.refuse(pa.array(~np.isfinite(values)), "is no finite float32, which was expected")
        return values

    def refuse(self, wrong: Any, told: str) -> None:
        """Raises NotConvertible for the first value that is wrong, if one is."""
        import pyarrow.compute as pc

        place = pc.index(wrong, True).as_py()
        if place < 0:
            return
        row = place if self._rows is None else int(self._rows[place])
        value = str(self._array[place].as_py())
        raise NotConvertible(f"{self._where}, row {row + 1}: {value[:80]!r} {told}")

    def _anything(self) -> Any:
        import pyarrow.compute as pc

        return pc.is_valid(self._array)


def _holds_lists(feature: Feature) -> bool:
    if isinstance(feature, DenseFeature):
        return feature.shape != ()
    return feature.kind != "single"
