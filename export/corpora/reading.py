"""A candidate corpus as the user has it -> ids, feature columns and attributes, each value checked, batch by batch.

Rows are told as a reader counts them: row 1 is the first candidate of a file, in a CSV file the line after the header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bundle.features.columns import Column
from bundle.format.manifest import Feature, readers_of, told_by
from export.corpora.cells import INTEGER, NUMBER, Cells, holds_lists
from export.corpora.files import CorpusFile, Origin, RowBatch, read_batches
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusPart


@dataclass(frozen=True)
class CorpusBatch:
    """Some candidates, in the corpus' order.

    Attributes:
      ids: a `pyarrow.Array` of int64 or strings, without nulls; of one type in all batches.
      features: column by feature.
      attributes: `pyarrow.Array` by attribute.
      told: names corpus and file in messages.
    """

    ids: Any
    features: dict[str, Column]
    attributes: dict[str, Any]
    told: str


class CorpusReader:
    """Reads the columns that the recipe names; a batch is in memory.

    The values of a bag or sequence in CSV are split at `part.list_separator`, and an empty cell is an empty list. An
    attribute whose column feeds a bag is a list, too. An empty or null cell of a single or dense feature takes the
    feature's default.
    """

    def __init__(
        self, files: Sequence[CorpusFile], name: str, part: CorpusPart, features: Mapping[str, Feature]
    ) -> None:
        """Begins a corpus.

        Args:
          files: of the corpus.
          name: of the corpus.
          part: what the recipe says of it.
          features: every feature of the model.
        Raises:
          UsageError: the recipe names a feature that the model does not have.
        """
        readers = readers_of(features)
        for key in part.features:
            if key not in readers:
                raise UsageError(
                    f"candidates.{name}.features: the model has no feature {key!r}; it has {', '.join(readers)}"
                )
        self._files, self._name, self._part = files, name, part
        self._features = {key: told_by(key, features[readers[key][0]]) for key in part.features}
        self._columns = list(dict.fromkeys([part.id, *part.features.values(), *part.attributes]))
        self._ids = _Ids()
        self._texts = {column: _Text() for column in part.attributes}
        self._lists = {part.features[key] for key, feature in self._features.items() if holds_lists(feature)}
        self._seen: set[str] = set()
        self._rows: list[tuple[CorpusFile, int, str]] = []

    def batches(self) -> Iterator[CorpusBatch]:
        """Yields the candidates.

        Raises:
          UsageError: a file is unreadable, or without a column that the recipe names.
          NotConvertible: no candidates, or a value that is no id or does not fit its feature; names file, row, column
            and value.
        """
        for file in self._files:
            self._rows.append((file, 0, "row"))
            for batch in read_batches(file, self._name, self._part, self._columns):
                if batch.size:
                    self._rows[-1] = (file, self._rows[-1][1] + batch.size, batch.origin.unit)
                    yield self._checked(batch)
        first = self._files[0].path
        if not sum(count for _, count, _ in self._rows):
            raise NotConvertible(f"corpus {self._name!r}: {first.name} holds no candidates")
        self._ids.close()
        for column in self._columns:
            if column not in self._seen:
                raise UsageError(f"corpus {self._name!r}: no record of {first.name} has a value in column {column!r}")

    def numeric_attributes(self) -> dict[str, Any]:
        """Returns the Arrow type of each attribute whose text is all numbers, after the last batch."""
        kinds = {column: text.kind() for column, text in self._texts.items()}
        return {column: kind for column, kind in kinds.items() if kind is not None}

    def told_twice(self, first: int, second: int) -> str:
        """Returns where two candidates stand, by their positions."""
        (one, row_one, unit), (two, row_two, other) = self._place(first), self._place(second)
        if one == two:
            return f"stands in {unit}s {row_one} and {row_two}" + ("" if len(self._files) == 1 else f" of {one}")
        return f"stands in {unit} {row_one} of {one} and {other} {row_two} of {two}"

    def _place(self, position: int) -> tuple[str, int, str]:
        for file, count, unit in self._rows:
            if position < count:
                return file.path.name, position + 1, unit
            position -= count
        raise IndexError(position)

    def _checked(self, batch: RowBatch) -> CorpusBatch:
        kind = batch.file.format
        cells = {
            column: Cells(array, replace(batch.origin, column=column), kind) for column, array in batch.columns.items()
        }
        for column, array in batch.columns.items():
            if column not in self._seen and (kind != "tfrecord" or len(array.values)):
                self._seen.add(column)
        attributes = {}
        for column in self._part.attributes:
            separator = self._part.list_separator if column in self._lists else None
            attributes[column] = cells[column].attribute(separator)
            if kind == "csv" and separator is None:
                self._texts[column].see(attributes[column])
        return CorpusBatch(
            self._ids.checked(cells[self._part.id].single()),
            {
                key: cells[column].feature(self._features[key], self._part.list_separator)
                for key, column in self._part.features.items()
            },
            attributes,
            str(batch.origin),
        )


class _Ids:
    """The ids of all batches: all integers or all strings, whichever the first of a CSV file is."""

    def __init__(self) -> None:
        self._are_integers: bool | None = None
        self._floats: tuple[Origin, str] | None = None
        self._all_numbers = True

    def checked(self, cells: Cells) -> Any:
        """Returns int64 or strings."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array, kind = cells.array, cells.array.type
        cells.refuse(cells.absent(), "is null; every candidate needs an id")
        if pa.types.is_floating(kind):
            cells.refuse(pc.is_valid(array), "is a float; ids are integers or strings")
        if cells.is_text:
            return self._of_text(cells)
        integers = pa.types.is_integer(kind)
        if not (integers or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise NotConvertible(f"{cells.origin} holds {kind}; ids are integers or strings")
        if self._are_integers not in (None, integers):
            raise NotConvertible(
                f"{cells.origin} holds {kind}, the ids above are {self._told()}; one type was expected"
            )
        self._are_integers, self._all_numbers = integers, False
        return cells.integers() if integers else array

    def close(self) -> None:
        """Refuses ids that are numbers in all of a CSV file, but not whole ones."""
        if self._all_numbers and self._are_integers is False and self._floats is not None:
            origin, value = self._floats
            raise NotConvertible(f"{origin.at(0)}: {value!r} is a float; ids are integers or strings")

    def _of_text(self, cells: Cells) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pc.match_substring_regex(cells.array, INTEGER)
        if self._are_integers is None:
            self._are_integers = whole[0].as_py()
            self._floats = cells.origin, cells.array[0].as_py()
        if self._are_integers:
            number = pc.match_substring_regex(cells.array, NUMBER)
            first = pc.index(whole, False).as_py()
            if first >= 0 and number[first].as_py():
                cells.refuse(pc.invert(whole), "is a float; ids are integers or strings")
            cells.refuse(
                pc.invert(whole),
                "is text, the ids above are integers; if all are text, write the corpus as Parquet, where the "
                "column's type says so",
            )
            return cells.integers()
        cells.refuse(whole, "is an integer, the ids above are text; if all are text, write the corpus as Parquet")
        self._all_numbers &= bool(pc.all(pc.match_substring_regex(cells.array, NUMBER)).as_py())
        return cells.array.cast(pa.large_string())

    def _told(self) -> str:
        return "integers" if self._are_integers else "text"


class _Text:
    """What an attribute's text is, in all batches: whole numbers, numbers or text; null where nothing was seen."""

    def __init__(self) -> None:
        self._any, self._whole, self._numbers = False, True, True

    def see(self, array: Any) -> None:
        """Looks at some more."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._any |= array.null_count < len(array)
        if self._whole and pc.all(pc.match_substring_regex(array, INTEGER)).as_py():
            try:
                array.cast(pa.int64())
            except pa.ArrowInvalid:  # beyond int64
                self._whole = False
            return
        self._whole = False
        self._numbers = self._numbers and bool(pc.all(pc.match_substring_regex(array, NUMBER)).as_py())

    def kind(self) -> Any:
        """Returns the Arrow type of numbers, None of text."""
        import pyarrow as pa

        if not self._any or not self._numbers:
            return None
        return pa.int64() if self._whole else pa.float64()
