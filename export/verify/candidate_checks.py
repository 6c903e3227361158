"""Compares a sample of the candidates and contexts of a finished bundle with their files, which are
read again, and a sample of the vectors with the reference model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Change
from bundle.features.columns import Column, checked_offsets
from bundle.format.manifest import Index, Manifest
from bundle.storage import arrow, files
from bundle.stores.reader import MappedColumns
from export.corpora.changes import LoggedChanges
from export.corpora.files import locate_corpus
from export.errors import UsageError, VerificationFailed
from export.recipe.schema import CorpusSection, ExportJob
from export.verify.changed_candidates import ExpectedStore, expected_store
from export.verify.examples import Examples
from export.verify.forms import allowed
from export.verify.source_rows import read_again
from rows.files import SourceFile

SAMPLE = 256
"""The number of candidates of each corpus and index that are compared."""

Positions = NDArray[np.int64]
ReferenceVectors = Callable[[str, Examples], NDArray[Any]]
"""(candidate tower, candidates as examples) -> [n, dim] vectors of the reference model."""


def check_candidates(
    root: Path,
    manifest: Manifest,
    job: ExportJob,
    base: Path,
    reference_vectors: ReferenceVectors,
    changes: LoggedChanges | None = None,
) -> None:
    """Compares a sample of every corpus with its file, and of every index with the reference model.

    Args:
      root: The directory of the staged bundle.
      manifest: The bundle's manifest.
      job: The recipe.
      base: The recipe's folder.
      reference_vectors: Computes vectors by the reference model.
      changes: The logged changes that the bundle contains; None: it contains none.
    Raises:
      UsageError: The bundle contains changes, and they are not those of the log.
      VerificationFailed: An id, feature, attribute or vector is another candidate's, or wrong;
        names the candidate.
    """
    included = None if changes is None else changes.last
    if manifest.changes_included != included:
        raise UsageError(
            "the last change of a log that the bundle contains is "
            f"{manifest.changes_included or 'none'}, and that of the log given is "
            f"{included or 'none'}; name the log as --with-changes, as it was"
        )
    stores = {}
    for kind, sections, entries in (
        ("corpora", job.corpora, manifest.corpora),
        ("contexts", job.contexts, manifest.contexts),
    ):
        for name, section in sections.items():
            file = entries[name].file
            stores[kind, name] = MappedColumns(files.locate(root, file), entries[name])
            sources = locate_corpus(base, name, section, kind)
            store_changes: Sequence[tuple[int, Change]] = []
            if changes is not None:
                store_changes = changes.of(kind, name)
            _check_store(stores[kind, name], name, section.stored, sources, file, store_changes)
    for name, index in manifest.indexes.items():
        store = stores["corpora", index.corpus]
        _check_vectors(root, manifest, name, index, store, job, reference_vectors)


def _check_vectors(
    root: Path,
    manifest: Manifest,
    name: str,
    index: Index,
    store: MappedColumns,
    job: ExportJob,
    reference_vectors: ReferenceVectors,
) -> None:
    """Compares a sample of the vectors of an index with the reference model."""
    corpus = manifest.corpora[index.corpus]
    positions = _sample(store.size)
    # A corpus may have features of several towers.
    tower_inputs = manifest.inputs_of(
        source
        for tensor in manifest.towers[index.candidate_tower].inputs
        for source in tensor.sources
    )
    features = [feature for feature in corpus.features if feature in tower_inputs]
    columns = store.features(positions, features)
    expected = reference_vectors(index.candidate_tower, Examples(positions.size, columns))

    vectors = np.memmap(
        files.locate(root, index.vectors), "<f4", "r", shape=(store.size, index.dim)
    )
    difference = np.abs(vectors[positions].astype(np.float64) - expected)
    limit = job.towers[index.candidate_tower].max_abs_error.get("f32")
    # Negated, so that NaN is wrong, too.
    wrong = (~(difference <= allowed(expected, limit))).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        candidate_id = store.ids(positions).tolist()[first]
        raise VerificationFailed(
            f"index {name!r}: the vector of candidate {candidate_id!r} (row "
            f"{positions[first] + 1} of corpus {index.corpus!r}) is not what the original model "
            f"gives; {int(wrong.sum())} of {positions.size} compared are wrong",
            steps=[index.vectors],
        )


def _sample(size: int) -> Positions:
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).round().astype(np.int64))


def _check_store(
    store: MappedColumns,
    name: str,
    section: CorpusSection,
    files: list[SourceFile],
    step: str,
    changes: Sequence[tuple[int, Change]],
) -> None:
    """Compares a sample of a store with its files, and its changed entries with the log."""
    positions = _sample(store.size)
    file_rows = positions
    if changes:
        is_text = arrow.kind_of(store.types["id"]) == "string"
        expected = expected_store(files, name, section, changes, is_text)
        _check_changed(store, name, section, files, step, expected)
        # Unchanged entries come first, without the gaps of changed and deleted ones.
        positions = _sample(expected.rows.size)
        file_rows = expected.rows[positions]
    _check_rows(store, name, section, files, step, positions, file_rows)


def _check_changed(
    store: MappedColumns,
    name: str,
    section: CorpusSection,
    files: list[SourceFile],
    step: str,
    expected: ExpectedStore,
) -> None:
    """Compares the entries that a log changes: all ids, and a sample of the values."""
    first = expected.rows.size
    positions = np.arange(first, store.size)
    keys = [entry.key for entry in expected.changed]
    if store.ids(positions).tolist() != keys:
        raise VerificationFailed(
            f"corpus {name!r}: the {positions.size} changed entries of the bundle are not the "
            f"{len(keys)} that its files and its log give",
            steps=[step],
        )
    if not keys:
        return
    for number in _sample(len(keys)):
        entry = expected.changed[number]
        position = positions[number : number + 1]
        if entry.row is not None:
            # A change of attributes leaves the others, and the features, as the files have them.
            row = np.array([entry.row])
            unchanged = [
                name for name in section.attributes if f"attribute:{name}" not in entry.values
            ]
            _check_rows(store, name, section, files, step, position, row, unchanged)
        columns = [column for column in entry.values if column in store.types]
        stored = store.arrays(position, columns)
        for column in columns:
            (value,) = stored[column].to_pylist()
            if not _same_value(value, entry.values[column]):
                raise VerificationFailed(
                    f"corpus {name!r}: {column.replace(':', ' ')} of {entry.key!r} is {value!r} in "
                    f"the bundle, the log says {entry.values[column]!r}",
                    steps=[step],
                )


def _same_value(value: Any, logged: Any) -> bool:
    """Returns whether a store holds a value of the log; a list may be logged as its only value."""
    if isinstance(value, list) and not isinstance(logged, list):
        logged = [logged]
    if isinstance(value, float) and logged is not None:
        # A log is in float64; some columns of a store are in float32.
        return bool(value == np.float32(logged)) or value == logged
    return bool(value == logged)


def _check_rows(
    store: MappedColumns,
    name: str,
    section: CorpusSection,
    files: list[SourceFile],
    step: str,
    positions: Positions,
    file_rows: Positions,
    attribute_names: Sequence[str] | None = None,
) -> None:
    """Compares entries with rows of the files.

    Args:
      store: The store.
      name: The name of the corpus.
      section: The section of the recipe for the corpus.
      files: The files of the corpus.
      step: The step that wrote the store.
      positions: [m] positions of the entries.
      file_rows: [m] positions of the entries' rows in the files, ascending.
      attribute_names: The attributes that are compared; None: all.
    """
    if attribute_names is None:
        attribute_names = section.attributes
    # A feature may be the id, and an attribute a feature.
    columns_read = {section.id, *section.features.values(), *section.attributes}
    rows = read_again(files, section, file_rows, sorted(columns_read))
    if len(rows) != positions.size:
        raise VerificationFailed(
            f"corpus {name!r}: its files do not hold the {store.size} candidates of the bundle",
            steps=[step],
        )
    ids = store.ids(positions).tolist()
    columns = store.features(positions, list(section.features))
    values = {key: _values(key, column, len(rows)) for key, column in columns.items()}
    attributes = store.attributes(positions, list(attribute_names))
    for i, row in enumerate(rows):
        # The column of the file, and the value in the store, by the description of the field.
        fields: dict[str, tuple[str, Any]] = {"id": (section.id, ids[i])}
        for key, column in section.features.items():
            fields[f"feature {key!r}"] = column, values[key][i]
        for key in attribute_names:
            fields[f"attribute {key!r}"] = key, attributes[key][i]
        for description, (column, value) in fields.items():
            if _same(row[column], value, section.list_separator):
                continue
            source = f"the {len(files)} files"
            if len(files) == 1:
                source = files[0].path.name
            raise VerificationFailed(
                f"corpus {name!r}, row {file_rows[i] + 1}: {description} is {value!r} in the "
                f"bundle, column {column!r} of {source} says {row[column]!r}",
                steps=[step],
            )


def _values(name: str, column: Column, n: int) -> list[list[Any]]:
    """Returns the values of each entry in a column."""
    offsets = checked_offsets(name, column, n)
    return [values.tolist() for values in np.split(column.values, offsets[1:-1])]


def _same(cell: Any, value: Any, separator: str) -> bool:
    """Returns whether a cell of a file, a text or a value, equals a value of the bundle."""
    if isinstance(value, list):
        cells = _cells(cell, len(value), separator)
        if len(cells) != len(value):
            return False
        pairs = zip(cells, value, strict=True)
        return all(_same(element, stored, separator) for element, stored in pairs)
    # A tf.train.Example has a list for a single value, too.
    if isinstance(cell, list):
        cell = cell[0] if cell else None
    if value is None:
        # What is missing is a null or NaN in Parquet, and an empty text in CSV.
        return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    if isinstance(value, float | int) and not isinstance(value, bool):
        return _same_number(cell, value)
    return str(cell) == str(value)


def _same_number(cell: Any, value: float) -> bool:
    try:
        if isinstance(value, float):
            return bool(np.isclose(float(cell), value, rtol=1e-6, atol=0))
        return int(cell) == value
    except (TypeError, ValueError):
        # The cell is empty by now, or holds no number.
        return False


def _cells(cell: Any, count: int, separator: str) -> list[Any]:
    """Returns the values of a cell that should hold `count` of them."""
    if cell is None or cell == "":
        return []
    if isinstance(cell, list):
        return cell
    # A single text may contain the separator.
    if isinstance(cell, str) and count > 1:
        return cell.split(separator)
    return [cell]
