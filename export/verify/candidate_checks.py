"""Compares candidates and contexts of a finished bundle with their files, and vectors with the
reference model.

Sampled candidates are read from the file anew.
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
from bundle.format.manifest import Manifest
from bundle.storage import arrow, files
from bundle.stores.reader import MappedColumns
from export.corpora.changes import LoggedChanges
from export.corpora.files import CorpusFile, locate_corpus, read_rows
from export.errors import UsageError, VerificationFailed
from export.recipe.schema import CorpusSection, ExportJob
from export.verify.changed_candidates import ExpectedStore, expected_store
from export.verify.examples import Examples
from export.verify.forms import allowed

SAMPLE = 256
"""Candidates compared of each corpus and index."""

Positions = NDArray[np.int64]
Original = Callable[[str, Examples], NDArray[Any]]
"""(candidate tower, candidates as examples) -> [n, dim] vectors of the reference model."""


def check_candidates(
    root: Path,
    manifest: Manifest,
    job: ExportJob,
    base: Path,
    original: Original,
    changes: LoggedChanges | None = None,
) -> None:
    """Compares a sample of every corpus with its file, and of every index with the reference model.

    Args:
      root: directory of the staged bundle.
      manifest: of the bundle.
      job: the recipe.
      base: its folder.
      original: gives vectors of the reference model.
      changes: of the log whose changes the bundle contains; None: it contains none.
    Raises:
      UsageError: the bundle contains changes, and they are not those of the log.
      VerificationFailed: an id, feature, attribute or vector is another candidate's, or wrong;
        names the candidate.
    """
    stores = {}
    included = None if changes is None else changes.sequence
    if manifest.changes_included != included:
        raise UsageError(
            f"the bundle contains the changes of a log up to sequence {manifest.changes_included}, "
            f"and the log given ends at {included}; name the log as --with-changes, as it was"
        )
    for kind, parts, entries in (
        ("corpora", job.corpora, manifest.corpora),
        ("contexts", job.contexts, manifest.contexts),
    ):
        for name, part in parts.items():
            file = entries[name].file
            stores[kind, name] = MappedColumns(files.locate(root, file), entries[name])
            sources = locate_corpus(base, name, part, kind)
            of_store = [] if changes is None else changes.of(kind, name)
            _check_store(stores[kind, name], name, part.stored, sources, file, of_store)
    for name, index in manifest.indexes.items():
        store = stores["corpora", index.corpus]
        corpus = manifest.corpora[index.corpus]
        positions = _sample(store.size)
        taken = manifest.inputs_of(
            source
            for tensor in manifest.towers[index.candidate_tower].inputs
            for source in tensor.sources
        )
        columns = store.features(positions, [each for each in corpus.features if each in taken])
        right = original(index.candidate_tower, Examples(positions.size, columns))
        written = np.memmap(
            files.locate(root, index.vectors), "<f4", "r", shape=(store.size, index.dim)
        )[positions]
        limit = job.towers[index.candidate_tower].max_abs_error.get("f32")
        missed = ~(np.abs(written.astype(np.float64) - right) <= allowed(right, limit))
        if missed.any():
            place = int(np.argmax(missed.any(axis=1)))
            raise VerificationFailed(
                f"index {name!r}: the vector of candidate {store.ids(positions).tolist()[place]!r} "
                f"(row {positions[place] + 1} of corpus {index.corpus!r}) is not what the original "
                "model gives; "
                f"{int(missed.any(axis=1).sum())} of {positions.size} compared are wrong",
                steps=[index.vectors],
            )


def _sample(size: int) -> Positions:
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).round().astype(np.int64))


def _check_store(
    store: MappedColumns,
    name: str,
    part: CorpusSection,
    files: list[CorpusFile],
    step: str,
    changes: Sequence[tuple[int, Change]],
) -> None:
    """Compares a sample of a store with its files, and what its log changes with the log."""
    positions = _sample(store.size)
    file_rows = positions
    if changes:
        is_text = arrow.kind_of(store.types["id"]) == "string"
        expected = expected_store(files, name, part, changes, is_text)
        _check_changed(store, name, part, files, step, expected)
        positions = _sample(expected.rows.size)
        file_rows = expected.rows[positions]
    _check_rows(store, name, part, files, step, positions, file_rows)


def _check_changed(
    store: MappedColumns,
    name: str,
    part: CorpusSection,
    files: list[CorpusFile],
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
    for number in _sample(len(keys)) if keys else ():
        entry = expected.changed[number]
        position = positions[number : number + 1]
        if entry.row is not None:
            row = np.array([entry.row])
            untouched = [
                name for name in part.attributes if f"attribute:{name}" not in entry.values
            ]
            _check_rows(store, name, part, files, step, position, row, untouched)
        columns = [column for column in entry.values if column in store.types]
        held = store.arrays(position, columns)
        for column in columns:
            (value,) = held[column].to_pylist()
            if not _same_value(value, entry.values[column]):
                raise VerificationFailed(
                    f"corpus {name!r}: {column.replace(':', ' ')} of {entry.key!r} is {value!r} in "
                    f"the bundle, the log says {entry.values[column]!r}",
                    steps=[step],
                )


def _same_value(value: Any, logged: Any) -> bool:
    """Returns whether a store holds what a log says; a single value may be a list of it."""
    if isinstance(value, list) and not isinstance(logged, list):
        logged = [logged]
    if isinstance(value, float) and logged is not None:
        return bool(value == np.float32(logged)) or value == logged
    return bool(value == logged)


def _check_rows(
    store: MappedColumns,
    name: str,
    part: CorpusSection,
    files: list[CorpusFile],
    step: str,
    positions: Positions,
    file_rows: Positions,
    attribute_names: Sequence[str] | None = None,
) -> None:
    """Compares entries with rows of the files.

    Args:
      store: The store.
      name: Of the corpus.
      part: What the recipe says of it.
      files: Of the corpus.
      step: That wrote the store.
      positions: [m] of the entries.
      file_rows: [m], ascending, of their rows.
      attribute_names: The attributes that are compared; None: all.
    """
    if attribute_names is None:
        attribute_names = part.attributes
    columns_read = [part.id, *part.features.values(), *part.attributes]
    rows = read_rows(files, name, part, file_rows, columns_read)
    if len(rows) != positions.size:
        raise VerificationFailed(
            f"corpus {name!r}: its files do not hold the {store.size} candidates of the bundle",
            steps=[step],
        )
    told = files[0].path.name if len(files) == 1 else f"the {len(files)} files"
    ids = store.ids(positions).tolist()
    columns = store.features(positions, list(part.features))
    values = {key: _values(key, column, len(rows)) for key, column in columns.items()}
    attributes = store.attributes(positions, list(attribute_names))
    for place, row in enumerate(rows):
        held: dict[str, tuple[str, Any]] = {"id": (part.id, ids[place])}
        for key, column in part.features.items():
            held[f"feature {key!r}"] = column, values[key][place]
        for key in attribute_names:
            held[f"attribute {key!r}"] = key, attributes[key][place]
        for what, (column, value) in held.items():
            if not _same(row[column], value, part.list_separator):
                raise VerificationFailed(
                    f"corpus {name!r}, row {file_rows[place] + 1}: {what} is {value!r} in the "
                    f"bundle, column {column!r} of {told} says {row[column]!r}",
                    steps=[step],
                )


def _values(name: str, column: Column, n: int) -> list[list[Any]]:
    offsets = checked_offsets(name, column, n)
    return [each.tolist() for each in np.split(column.values, offsets[1:-1])]


def _same(cell: Any, value: Any, separator: str) -> bool:
    """Tells whether a cell of the file, text or a value, says what the bundle holds."""
    if isinstance(cell, list) and not isinstance(value, list):  # of an Example
        cell = cell[0] if cell else None
    if isinstance(value, list):
        cells = cell.split(separator) if isinstance(cell, str) and len(value) > 1 else cell
        if cells is None or cells == "":
            cells = []
        elif not isinstance(cells, list):
            cells = [cells]
        return len(cells) == len(value) and all(
            _same(*pair, separator) for pair in zip(cells, value, strict=True)
        )
    if value is None:
        return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    if isinstance(value, float):
        return bool(np.isclose(float(cell), value, rtol=1e-6, atol=0))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(cell) == value
    return str(cell) == str(value)
