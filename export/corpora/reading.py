"""Reads a candidate corpus from the user's files, batch by batch: ids, feature columns and
attributes, with each value checked.

Rows are counted as a reader counts them: row 1 is the first candidate of a file, in a CSV file the
line after the header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc
from pyarrow import types

from bundle.features.columns import Column
from bundle.format.manifest import Feature, readers_of
from bundle.shown_values import similar_name
from export.corpora.files import read_corpus_file
from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection
from export.row_errors import row_errors
from rows.batches import Rows, check_columns
from rows.cells import INTEGER, NUMERIC, attribute_array, holds_lists, single_cells, text_rank
from rows.errors import ValueRejected
from rows.files import SourceFile
from rows.inputs import input_readers

HEAD_FILES = 16
"""The number of files of a corpus whose heads are checked before a model is built."""
HEAD_BATCHES = 16
"""The maximum number of batches of a file that are its head."""
FRACTION = r"^[+-]?[0-9]*\.[0-9]*([eE][+-]?[0-9]+)?$"
"""The spelling of ids by a program that holds a column of ids as floats."""
Batch = tuple[str, Any, dict[str, Column], dict[str, Any]]
"""Names of corpus and file for messages; ids, int64 or a `pyarrow.Array` of strings without nulls,
of one type in all batches; column by feature; `pyarrow.Array` by attribute."""


class CorpusReader:
    """Reads the columns that the recipe names; a batch is in memory.

    The values of a bag or sequence in CSV are split at `section.list_separator`, and an empty cell
    is an empty list. An attribute whose column feeds a bag is a list, too. An empty or null cell of
    a single or dense feature takes the feature's default.

    Attributes:
      key, section: The key of the corpus in the recipe, such as `corpora.movies`, and its section.
      cut, padded: The number of rows so far whose list was longer or shorter than its input takes,
        by input.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        key: str,
        section: CorpusSection,
        features: Mapping[str, Feature],
    ) -> None:
        """Begins a corpus.

        Args:
          files: The files of the corpus.
          key: The key of the corpus in the recipe, such as `corpora.movies`.
          section: The section of the recipe.
          features: All features of the model.

        Raises:
          UsageError: The recipe names a feature that the model does not have.
        """
        readers = readers_of(features)
        for name in section.features:
            if name not in readers:
                raise UsageError(
                    f"{key}.features: the model has no feature {name!r}"
                    f"{similar_name(name, readers)}; it has {', '.join(readers)}"
                )
        self._files = files
        self.key = key
        self.section = section.stored
        self._inputs = input_readers(features, section.features, fills=False)
        # A column may feed several inputs and an attribute, and is read once.
        self._columns = {
            column: f"{key}.{column_key}" for column, column_key in section.column_keys.items()
        }
        self._lists = {
            section.features[name]
            for name, reader in self._inputs.items()
            if holds_lists(reader.feature)
        }
        self.cut = Counter[str]()
        self.padded = Counter[str]()
        self._integral: bool | None = None
        self._texts: dict[str, int] = {}
        self._seen: set[str] = set()
        self._batches: list[tuple[int, int, str, str]] = []

    def key_parts(self) -> Any:
        """Returns all that decides what is read: how a column is read and checked depends on the
        features that read it.
        """
        return [self.key, self.section, self._columns, self._inputs, self._files]

    def batches(self) -> Iterator[Batch]:
        """Yields the candidates.

        Raises:
          UsageError: A file is unreadable, or without a column that the recipe names.
          NotConvertible: No candidates, or a value that is no id or does not fit its feature; names
            file, row, column and value.
        """
        self._check_columns()
        for file in self._files:
            for rows in read_corpus_file(file, self.key, self.section, self._columns):
                self._batches.append((len(rows), rows.first, rows.unit, file.path.name))
                yield self._check_batch(rows)
        self._check_all()

    def check_head(self) -> None:
        """Checks the first candidates of the first files, in a time that the size of the corpus
        does not change.

        Raises:
          UsageError, NotConvertible: As `batches`.
        """
        self._check_columns()
        is_complete = len(self._files) <= HEAD_FILES
        for file in self._files[:HEAD_FILES]:
            batches = read_corpus_file(file, self.key, self.section, self._columns)
            for count, rows in enumerate(batches, 1):
                self._batches.append((len(rows), rows.first, rows.unit, file.path.name))
                self._check_batch(rows)
                # Some records may lack a feature, so one that is rare is looked for in more.
                are_seen = len(self._seen) == len(self._columns)
                if count == HEAD_BATCHES or (are_seen and count > 1):
                    is_complete = False
                    break
        if is_complete:
            self._check_all()

    def _check_columns(self) -> None:
        """Checks that JSON lines have all columns. Files of other formats are checked as they are
        read.
        """
        files = [file for file in self._files if file.format == "jsonl"]
        with row_errors(self.key, self._columns, NotConvertible):
            check_columns(files, self._columns)

    def _check_all(self) -> None:
        """Checks what only all candidates show: that there are some, and a value in each column."""
        first = self._files[0].path.name
        if not self._batches:
            raise NotConvertible(f"{self.key}: {first} holds no candidates")
        for column, key in self._columns.items():
            if column not in self._seen:
                raise UsageError(f"{key}: no record of {first} has a value in column {column!r}")

    def numeric_attributes(self) -> dict[str, Any]:
        """Returns the Arrow type of each attribute whose text is all numbers, after the
        last batch.
        """
        return {
            column: NUMERIC[rank] for column, rank in self._texts.items() if rank < len(NUMERIC)
        }

    def line_of(self, position: int) -> str:
        """Returns the line of a candidate, by its position in the corpus: `row 3 of movies.csv`."""
        for size, first, unit, file in self._batches:
            if position < size:
                return f"{unit} {first + position + 1} of {file}"
            position -= size
        raise IndexError(position)

    def _check_batch(self, rows: Rows) -> Batch:
        with row_errors(self.key, self._columns, NotConvertible):
            return self._batch_of(rows)

    def _batch_of(self, rows: Rows) -> Batch:
        # A column of TFRecords may be missing in some records, but not in all of them.
        for column, array in rows.columns.items():
            if rows.file.format != "tfrecord" or len(array.values):
                self._seen.add(column)
        section = self.section
        ids = self._ids(rows)
        attributes = {}
        for column in section.attributes:
            separator = section.list_separator if column in self._lists else None
            values = attribute_array(rows, column, separator)
            attributes[column] = values
            # Columns of other formats have types of their own.
            is_text = rows.file.format == "csv" and separator is None
            if is_text and values.null_count < len(rows):
                # One batch of a wider type decides for the whole column.
                self._texts[column] = max(self._texts.get(column, 0), text_rank(values))
        columns = {}
        for name, reader in self._inputs.items():
            fitted = reader.read(rows, section.features[name], section.list_separator)
            self.cut[name] += fitted.cut
            self.padded[name] += fitted.padded
            columns[name] = fitted.column
        return f"{self.key}: {rows.file.path.name}", ids, columns, attributes

    def _ids(self, rows: Rows) -> Any:
        """Returns the ids of rows: int64, or an Arrow array of strings.

        CSV has no types: all ids are integers if the first one is, and strings otherwise.
        """
        cells = single_cells(rows, self.section.id)
        array = cells.array
        kind = cells.array.type
        where = rows.within(self.section.id)
        cells.reject(array.is_null(), "is null; every candidate needs an id")
        if types.is_floating(kind):
            cells.reject(array.is_valid(), "is a float; ids are integers or strings")
        if not (cells.is_text or types.is_integer(kind)):
            raise ValueRejected(
                f"{where} holds {kind}; ids are integers or strings", self.section.id
            )
        if rows.file.format == "csv":
            is_float = pc.match_substring_regex(array, FRACTION)
            cells.reject(is_float, "is a float; ids are integers or strings")
            is_integer = pc.match_substring_regex(array, INTEGER)
            if self._integral is None:
                self._integral = is_integer[0].as_py()
            remedy = "if all are text, write the corpus as Parquet, where the column's type says so"
            if self._integral:
                problem = f"is text, the ids above are integers; {remedy}"
                cells.reject(pc.invert(is_integer), problem)
            else:
                problem = f"is an integer, the ids above are text; {remedy}"
                cells.reject(is_integer, problem)
        else:
            # Every file has a type of its own.
            if self._integral is None:
                self._integral = types.is_integer(kind)
            if types.is_integer(kind) != self._integral:
                above = "integers" if self._integral else "text"
                raise ValueRejected(
                    f"{where} holds {kind}, the ids above are {above}; one type was expected",
                    self.section.id,
                )
        if self._integral:
            return cells.integers()
        return array
