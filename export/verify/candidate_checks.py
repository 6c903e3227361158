"""Compares a sample of the candidates and contexts of a finished bundle with their files, which are
read again, and a sample of the vectors with the reference model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, checked_offsets
from bundle.format.features import input_facts
from bundle.format.manifest import (
    DenseFeature,
    Feature,
    Index,
    InputLength,
    Manifest,
    readers_of,
)
from bundle.storage import files
from bundle.stores.reader import MappedColumns
from export.bounds import allowed, differ
from export.corpora.changes import SECTIONS, ServedChanges, StoreChanges
from export.corpora.files import locate_corpus
from export.errors import UsageError, VerificationFailed
from export.recipe.schema import CorpusSection, ExportJob
from export.verify.changed_candidates import ExpectedStore, expected_store
from export.verify.examples import Examples
from export.verify.source_rows import read_again
from rows.files import SourceFile

SAMPLE = 256
"""The number of candidates of each corpus and index that are compared."""

Positions = NDArray[np.int64]
ReferenceVectors = Callable[[str, Examples], NDArray[Any]]
"""(candidate tower, candidates as examples) -> [n, dim] vectors of the reference model."""


@dataclass(frozen=True)
class StoredInput:
    """How a store holds the values of an input. The writer of stores is not asked: it is checked.

    Attributes:
      takes_lists: Whether an entry may have several values, so that a text of CSV is a list.
      length: The number of values that each entry has; None: any number.
      default: The values of an entry that has none, where the number of values is fixed and nothing
        pads them.
    """

    takes_lists: bool
    length: InputLength | None = None
    default: Sequence[Any] = ()

    def values_of(self, cell: Any, separator: str) -> list[Any]:
        """Returns the values that an entry has by the cell of its row.

        Args:
          cell: The cell of the file.
          separator: The separator of the values of a text.
        """
        values = _end_to_end(_values_in(cell, separator if self.takes_lists else None))
        if self.length is None:
            return values
        count = self.length.values
        if self.length.pad is None:
            values = values or [*self.default]
        else:
            padding = [self.length.pad] * (count - len(values))
            values = padding + values if self.length.pad_side == "start" else values + padding
        if self.length.keep == "last":
            return values[-count:]
        if self.length.keep == "first":
            return values[:count]
        return values


@dataclass(frozen=True)
class CheckedStore:
    """A store of candidates or contexts, and what it is compared with.

    Attributes:
      store: The store.
      kind, name: The key of the recipe that describes it: `corpora` or `contexts`, and a name.
      section: The section of this key.
      files: The files of its entries.
      inputs: How the values of each of its features are stored.
      step: The step that wrote it.
    """

    store: MappedColumns
    kind: str
    name: str
    section: CorpusSection
    files: list[SourceFile]
    inputs: Mapping[str, StoredInput]
    step: str

    @property
    def key(self) -> str:
        """The key of the recipe, such as `corpora.movies`."""
        return f"{self.kind}.{self.name}"


def check_candidates(
    root: Path,
    manifest: Manifest,
    job: ExportJob,
    base: Path,
    reference_vectors: ReferenceVectors,
    changes: ServedChanges | None = None,
) -> None:
    """Compares a sample of every corpus with its file, and of every index with the reference model.

    Args:
      root: The directory of the staged bundle.
      manifest: The bundle's manifest.
      job: The recipe.
      base: The recipe's folder.
      reference_vectors: Computes vectors by the reference model.
      changes: The changes of the service that the bundle contains; None: it contains none.

    Raises:
      UsageError: The bundle contains changes, and they are not those of the file.
      VerificationFailed: An id, feature, attribute or vector is another candidate's, or wrong;
        names the candidate.
    """
    included = None if changes is None else changes.last
    if manifest.changes_included != included:
        raise UsageError(
            "the last change of a service that the bundle contains is "
            f"{manifest.changes_included or 'none'}, and that of the file given is "
            f"{included or 'none'}; name the changes file of the service as --with-changes"
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
            store_changes = StoreChanges()
            if changes is not None:
                store_changes = changes.of(kind, name)
            inputs = stored_inputs(manifest.features, section.features)
            checked = CheckedStore(
                stores[kind, name], kind, name, section.stored, sources, inputs, file
            )
            check_store(checked, store_changes)
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
    limit = job.towers[index.candidate_tower].max_abs_error.get("f32")
    wrong = differ(vectors[positions], expected, allowed(expected, limit)).any(axis=1)
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


def check_store(checked: CheckedStore, changes: StoreChanges) -> None:
    """Compares a sample of a store with its files, and its changed entries with the changes.

    Args:
      checked: The store, and what it is compared with.
      changes: The changes of the store that the bundle contains.

    Raises:
      UsageError: A file cannot be read any more.
      VerificationFailed: An entry is another than the files and the changes give; names it.
    """
    store = checked.store
    positions = _sample(store.size)
    file_rows = positions
    if changes.states or changes.later_ids:
        expected = expected_store(checked.files, checked.key, checked.section, changes, store.types)
        known_positions = np.arange(store.size)
        if changes.later_ids:
            ids = store.ids(known_positions).tolist()
            is_known = np.array([key not in changes.later_ids for key in ids], bool)
            known_positions = known_positions[is_known]
        # Unchanged entries come first, without the gaps of changed and deleted ones.
        unchanged_count = expected.rows.size
        _check_changed(checked, expected, known_positions[unchanged_count:])
        sample = _sample(unchanged_count)
        positions = known_positions[sample]
        file_rows = expected.rows[sample]
    _check_rows(checked, positions, file_rows, checked.section.attributes)


def _check_changed(checked: CheckedStore, expected: ExpectedStore, positions: Positions) -> None:
    """Compares the entries that were changed: all ids, and a sample of the values."""
    store = checked.store
    keys = [entry.key for entry in expected.changed]
    if store.ids(positions).tolist() != keys:
        raise VerificationFailed(
            f"{checked.key}: the {positions.size} changed entries of the bundle are not the "
            f"{len(keys)} that its files and the changes of its service give",
            steps=[checked.step],
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
                name
                for name in checked.section.attributes
                if f"attribute:{name}" not in entry.values
            ]
            _check_rows(checked, position, row, unchanged)
        arrays = store.arrays(position, [*entry.values])
        for column, changed in entry.values.items():
            (stored,) = arrays[column].to_pylist()
            if not _same_value(stored, changed):
                raise VerificationFailed(
                    f"{checked.key}: {column.replace(':', ' ')} of {entry.key!r} is {stored!r} in "
                    f"the bundle, the changes say {changed!r}",
                    steps=[checked.step],
                )


def _same_value(stored: Any, changed: Any) -> bool:
    """Returns whether a store holds a changed value; a list may be sent as its only value."""
    if isinstance(stored, list) and not isinstance(changed, list):
        changed = [changed]
    if isinstance(stored, float) and changed is not None:
        # Changes are in float64; some columns of a store are in float32.
        return bool(stored == np.float32(changed)) or stored == changed
    return bool(stored == changed)


def _check_rows(
    checked: CheckedStore,
    positions: Positions,
    file_rows: Positions,
    attribute_names: Sequence[str],
) -> None:
    """Compares entries with rows of the files.

    Args:
      checked: The store, and what it is compared with.
      positions: [m] positions of the entries.
      file_rows: [m] positions of the entries' rows in the files, ascending.
      attribute_names: The attributes that are compared.
    """
    store = checked.store
    section = checked.section
    # A feature may be the id, and an attribute a feature.
    columns_read = {section.id, *section.features.values(), *section.attributes}
    rows = read_again(checked.files, section, file_rows, sorted(columns_read))
    if len(rows) != positions.size:
        kind = SECTIONS[checked.kind]
        raise VerificationFailed(
            f"{checked.key}: its files do not hold the {store.size} {kind} of the bundle",
            steps=[checked.step],
        )
    ids = store.ids(positions).tolist()
    columns = store.features(positions, list(section.features))
    values = {key: _values(key, column, len(rows)) for key, column in columns.items()}
    attributes = store.attributes(positions, list(attribute_names))
    for i, row in enumerate(rows):
        # The column of the file, what it gives, and what is stored, by the name of the field.
        fields: dict[str, tuple[str, Any, Any]] = {"id": (section.id, row[section.id], ids[i])}
        for key, column in section.features.items():
            given = checked.inputs[key].values_of(row[column], section.list_separator)
            fields[f"feature {key!r}"] = column, given, values[key][i]
        for key in attribute_names:
            given = row[key]
            if isinstance(attributes[key][i], list):
                given = _values_in(given, section.list_separator)
            fields[f"attribute {key!r}"] = key, given, attributes[key][i]
        for field, (column, given, stored) in fields.items():
            if _same(given, stored):
                continue
            source = f"the {len(checked.files)} files"
            if len(checked.files) == 1:
                source = checked.files[0].path.name
            raise VerificationFailed(
                f"{checked.key}, row {file_rows[i] + 1}: {field} is {stored!r} in the bundle, "
                f"column {column!r} of {source} gives {given!r}",
                steps=[checked.step],
            )


def _values(name: str, column: Column, n: int) -> list[list[Any]]:
    """Returns the values of each entry in a column."""
    offsets = checked_offsets(name, column, n)
    return [values.tolist() for values in np.split(column.values, offsets[1:-1])]


def stored_inputs(
    features: Mapping[str, Feature], names: Collection[str]
) -> dict[str, StoredInput]:
    """Returns how a store holds the values of inputs, by their names.

    Args:
      features: The features of the manifest.
      names: The inputs that the store has.
    """
    readers = readers_of(features)
    inputs = {}
    for name in names:
        reader = features[readers[name][0]]
        facts = input_facts(name, reader)
        default = facts.default
        if isinstance(default, dict):
            default = default["ids"]
        inputs[name] = StoredInput(
            _takes_lists(reader), facts.length, _end_to_end(_values_in(default))
        )
    return inputs


def _takes_lists(feature: Feature) -> bool:
    """Returns whether examples may have several values in the input of a feature."""
    if isinstance(feature, DenseFeature):
        return feature.take != "values" or feature.shape != ()
    return not feature.one_each or feature.places is not None


def _values_in(cell: Any, separator: str | None = None) -> list[Any]:
    """Returns the values of a cell.

    Args:
      cell: A text, a number, a list, or what is missing.
      separator: The separator of the values of a text; None: a text is one value.
    """
    if cell is None or (isinstance(cell, str) and cell == ""):
        return []
    if isinstance(cell, list):
        return cell
    if isinstance(cell, str) and separator is not None:
        return [*cell.split(separator)]
    return [cell]


def _end_to_end(values: list[Any]) -> list[Any]:
    """Returns the values of lists of any depth, in their order; a null list is empty."""
    if not any(isinstance(value, list) for value in values):
        return values
    return [value for part in values for value in _end_to_end(_values_in(part))]


def _same(given: Any, stored: Any) -> bool:
    """Returns whether a value of a file, which may be a text, equals one of the bundle."""
    if isinstance(stored, list):
        if len(given) != len(stored):
            return False
        return all(_same(value, element) for value, element in zip(given, stored, strict=True))
    # A tf.train.Example has a list for a single value, too.
    if isinstance(given, list):
        given = given[0] if given else None
    if isinstance(given, bytes):
        given = given.decode()
    if stored is None:
        # What is missing is a null or NaN in Parquet, and an empty text in CSV.
        return given is None or given == "" or (isinstance(given, float) and math.isnan(given))
    if isinstance(stored, float | int) and not isinstance(stored, bool):
        return _same_number(given, stored)
    return str(given) == str(stored)


def _same_number(given: Any, stored: float) -> bool:
    try:
        if isinstance(stored, float):
            # Features are stored in float32, attributes in float64.
            with np.errstate(over="ignore"):
                return stored in (float(given), float(np.float32(float(given))))
        if isinstance(given, str):
            given = int(given)
        return bool(given == stored)
    except (TypeError, ValueError):
        # The cell is empty by now, or holds no number.
        return False
