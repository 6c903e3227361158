"""Reads the ids that occur in training (`verify.trained_ids`), and finds the rows that they read.

The ids of a feature become rows by its own rule, as in a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.sources import Indicator
from bundle.features.table_feature import TableFeature
from bundle.format.manifest import EmbeddedFeature, Feature, KeyedIds
from bundle.tables.vocabularies import Vocabulary, index_keys
from export.checkpoint.trained_rows import TrainedRows
from export.errors import UsageError
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob, TrainedIdsSection
from export.row_errors import row_errors
from export.verify.recipe_examples import keys_of
from rows.cells import LIST_SEPARATOR
from rows.files import Format, matching_files, source_file
from rows.ids import read_ids

_ID_COLUMN = "id"


@dataclass(frozen=True)
class _Ids:
    """Ids as a file has them.

    Attributes:
      values: [n] int64, or [n] object holding str.
      source: The file's name, for messages.
      some_unknown: Whether ids that have no row are left out instead of rejected.
    """

    values: NDArray[Any]
    source: str
    some_unknown: bool = False


def trained_rows(
    job: ExportJob, base: Path, model: ModelSpec, entries: Mapping[str, Feature]
) -> dict[str, TrainedRows]:
    """Returns the rows that the ids of a recipe read, by the name of their table.

    Args:
      job: The recipe.
      base: The recipe's folder, which its paths are relative to.
      model: The recipe's model.
      entries: The features of the manifest.

    Raises:
      UsageError: A file is missing, unreadable, too large, or does not hold ids of its feature; the
        message names it and the first id.
    """
    if not job.verify.trained_ids:
        return {}
    vocabularies = {
        name: Vocabulary(index_keys(pa.chunked_array([pa.array(keys)])))
        for name, keys in keys_of(job, base, model).items()
    }
    by_table: dict[str, list[TrainedRows]] = {}
    for name, section in job.verify.trained_ids.items():
        key = f"verify.trained_ids.{name}"
        ids = _read_section(key, name, section, job, base)
        entry = entries.get(name)
        # A feature and a table may have one name: ids of the feature need no knowledge of rows.
        if isinstance(entry, EmbeddedFeature) and entry.table:
            row_count = model.tables[entry.table].rows
            trained = _rows_of_feature(key, name, entry, row_count, ids, vocabularies)
            by_table.setdefault(entry.table, []).append(trained)
        elif name in model.tables:
            by_table.setdefault(name, []).append(_rows_of_table(key, ids))
        else:
            features = [
                feature_name
                for feature_name, feature in entries.items()
                if isinstance(feature, EmbeddedFeature) and feature.table
            ]
            raise UsageError(
                f"{key}: the model has no feature and no table of this name that reads rows; its "
                f"features: {', '.join(sorted(features))}; its tables: "
                f"{', '.join(sorted(model.tables))}"
            )
    return {table: _join(parts) for table, parts in by_table.items()}


def trained_rows_of_tables(
    files: Sequence[tuple[str, str]], tables: Sequence[str]
) -> dict[str, TrainedRows]:
    """Returns the rows that files list, by the name of their table.

    Args:
      files: Tables and paths of files, in pairs.
      tables: The names of the existing tables.

    Raises:
      UsageError: A table does not exist, or a file is missing, unreadable or holds no rows.
    """
    check_trained_tables(files, tables)
    by_table: dict[str, list[TrainedRows]] = {}
    for name, file in files:
        key = f"--trained-ids {name}"
        ids = _read_ids(key, name, Path(file), TrainedIdsSection(file=file))
        by_table.setdefault(name, []).append(_rows_of_table(key, ids))
    return {table: _join(parts) for table, parts in by_table.items()}


def check_trained_tables(files: Sequence[tuple[str, str]], tables: Sequence[str]) -> None:
    """Checks that the tables of files of trained ids exist.

    Args:
      files: Tables and paths of files, in pairs.
      tables: The names of the existing tables.

    Raises:
      UsageError: A table does not exist.
    """
    for name, file in files:
        if name not in tables:
            raise UsageError(
                f"--trained-ids {name}={file}: there is no table of this name; the tables are "
                f"{', '.join(sorted(tables)) or 'none'}"
            )


def _read_section(
    key: str, name: str, section: TrainedIdsSection, job: ExportJob, base: Path
) -> _Ids:
    """Reads the ids that a section of the recipe names, in its own file or in the examples."""
    if section.file is not None:
        return _read_ids(key, name, base / section.file, section)
    verify = job.verify
    if verify.examples is None:
        raise UsageError(
            f"{key} names no file, and there is no verify.examples to take ids from; name a file "
            "of ids"
        )
    if verify.examples_format not in {None, "tf-example"}:
        raise UsageError(
            f"{key} names no file, and ids are not taken from records of "
            f"{verify.examples_format}, as verify.examples are; name a file of ids"
        )
    stated: Format | None = None
    if verify.examples_format is not None:
        stated = "tfrecord"
    with row_errors(key):
        paths = matching_files(base, verify.examples)
        files = [source_file(path, stated, otherwise="jsonl") for path in paths]
        ids = read_ids(files, section.column, [name, _ID_COLUMN], LIST_SEPARATOR)
    return _Ids(np.unique(ids), verify.examples, some_unknown=True)


def _read_ids(key: str, name: str, path: Path, section: TrainedIdsSection) -> _Ids:
    """Reads the ids of one file."""
    with row_errors(key):
        files = [source_file(path, otherwise="lines")]
        values = np.unique(read_ids(files, section.column, [name, _ID_COLUMN]))
    if not values.size:
        raise UsageError(f"{key}: {path} is empty; ids that occur in training were expected")
    return _Ids(values, path.name)


def _rows_of_table(key: str, ids: _Ids) -> TrainedRows:
    """Returns the trained rows of a table, whose file lists rows themselves."""
    wrong = [value for value in ids.values.tolist() if isinstance(value, str) or value < 0]
    if wrong:
        raise UsageError(
            f"{key}: {ids.source} has {wrong[0]!r}; of a table, its rows were expected: integers "
            "from 0; ids that a rule turns into rows are given under the name of their feature"
        )
    return TrainedRows(ids.values, ids.source)


def _rows_of_feature(
    key: str,
    name: str,
    entry: EmbeddedFeature,
    table_rows: int,
    ids: _Ids,
    vocabularies: Mapping[str, Vocabulary],
) -> TrainedRows:
    """Returns the rows that ids read by the rule of a feature.

    Args:
      key: The key of the recipe, for messages.
      name: The name of the feature.
      entry: The feature's entry in the manifest.
      table_rows: The number of rows of its table.
      ids: The ids.
      vocabularies: The vocabularies of the recipe and the model.

    Raises:
      UsageError: The feature has no row for one id alone, or rejects an id, or has no row for it.
    """
    if isinstance(entry.ids, KeyedIds) or entry.joint is not None or entry.places is not None:
        raise UsageError(
            f"{key}: a row of feature {name!r} is not made of one id by itself; give the rows of "
            f"its table instead, as verify.trained_ids.{entry.table}"
        )
    embedded = TableFeature(name, entry, Indicator(table_rows), vocabularies, {})
    try:
        rows = _resolve_rows(embedded, ids.values)
    except FeatureError as problem:
        if ids.values.dtype != np.int64:
            raise UsageError(f"{key}: {ids.source}: {problem}") from problem
        # The ids of a feature of texts may all be written in digits.
        try:
            rows = _resolve_rows(embedded, ids.values.astype(str).astype(object))
        except FeatureError:
            raise UsageError(f"{key}: {ids.source}: {problem}") from problem

    has_row = (rows >= 0) & (rows < table_rows)
    if entry.unknown.row is not None:
        rows = np.where(has_row, rows, entry.unknown.row)
        has_row[:] = True
    # Examples may hold unknown ids; in a file of trained ids, these are a mistake.
    if not has_row.all() and not (ids.some_unknown and has_row.any()):
        unknown = ids.values[~has_row].tolist()
        raise UsageError(
            f"{key}: {len(unknown)} of {len(ids.values)} ids of {ids.source} have no row in table "
            f"{entry.table!r} of {table_rows} rows, such as {unknown[0]!r}; ids of feature "
            f"{name!r} that occurred in training were expected"
        )
    return TrainedRows(np.unique(rows[has_row]), ids.source)


def _resolve_rows(embedded: TableFeature, values: NDArray[Any]) -> NDArray[np.int64]:
    """Returns [n] int64, the rows of n ids by the rule of a feature."""
    # Each id is an example of its own, so that a bag is no other than a single value.
    column = Column(values)
    if not embedded.entry.one_each:
        column = Column(values, np.arange(len(values) + 1, dtype=np.int64))
    ids = embedded.ids({embedded.column_name: column}, len(values))
    if len(ids.values) != len(values):
        raise FeatureError(
            embedded.input_name, "an id of several rows", "a list of rows of the table"
        )
    return embedded.rule.resolve(embedded.input_name, ids.values)


def _join(parts: Sequence[TrainedRows]) -> TrainedRows:
    """Returns the rows that several features read of one table."""
    if len(parts) == 1:
        return parts[0]
    rows = np.unique(np.concatenate([part.rows for part in parts]))
    return TrainedRows(rows, ", ".join(part.source for part in parts))
