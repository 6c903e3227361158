"""Writes the store of a candidate corpus, and the vectors that the candidate tower computes from
it, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, FeatureError, FormatError
from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.format.indexes import CANDIDATES_MAX
from bundle.stores.attribute_index import write_attribute_index
from bundle.stores.reader import MappedColumns
from bundle.stores.writer import StoreWriter
from export.corpora.reading import CorpusReader
from export.errors import DestinationError, NotConvertible
from export.steps import Written
from runtime.errors import InvalidInput
from runtime.tower import Tower
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower
from runtime.vectors import SEARCHABLE, find_unsearchable

BATCH_CANDIDATES = 2048
"""The number of candidates whose activations and vectors are in memory at a time."""

Moved = Callable[[int], None]
"""Takes the number of candidates that were processed since its last call."""


@dataclass(frozen=True)
class CandidateTower:
    """What leads from the columns of a candidate to its vector.

    Attributes:
      entry: The tower in the manifest, with its forms in f32 alone.
      reader: The features that it reads.
      features: The entries of these features, each with that of its table.
      id_files: The files by which rows of ids are found.
    """

    entry: manifest.Tower
    reader: FeatureReader
    features: Mapping[str, tuple[manifest.Feature, manifest.Table | None]]
    id_files: Sequence[Written]

    def key_parts(self) -> Any:
        """Returns what decides vectors: the rows of tables by the checksums of their entries."""
        forms = [(form.kind, Written(form.path)) for form in self.entry.forms]
        entry = [self.entry.inputs, self.entry.outputs, self.entry.result]
        return [entry, forms, self.features, self.id_files]


def check_candidate_count(key: str, count: int) -> None:
    """Checks that positions of candidates fit 32 bits.

    Args:
      key: The key of the corpus in the recipe.
      count: The number of its candidates, in all or so far.
    Raises:
      NotConvertible: There are too many.
    """
    if count > CANDIDATES_MAX:
        raise NotConvertible(
            f"{key}: its files hold {count} candidates or more; a corpus may have at "
            f"most {CANDIDATES_MAX}, for positions have 32 bits: divide it into several corpora, "
            "each with an index"
        )


def write_store(
    base: Path,
    file: str,
    corpus: CorpusReader,
    moved: Moved = lambda _: None,
    *,
    searched: bool = True,
) -> manifest.Corpus:
    """Writes the store of one corpus, or of contexts, a batch at a time.

    Args:
      base: Directory of the bundle that is being written.
      file: The file of the store in that directory.
      corpus: The reader of the candidates.
      moved: Takes the number of candidates that were read since its last call.
      searched: Whether positions in the corpus are stored: those of candidates are, those of
        contexts are not.
    Returns:
      The corpus' entry in the manifest.
    Raises:
      UsageError: A file is missing or unreadable, or lacks a column.
      NotConvertible: A value is no id or does not fit, or an id comes twice; names file, row and
        column.
      DestinationError: The store cannot be written.
    """
    try:
        with StoreWriter(base / file) as writer:
            for where, ids, features, attributes in corpus.batches():
                try:
                    writer.append(ids, features, attributes)
                except FormatError as problem:
                    raise NotConvertible(f"{where}: {problem}") from problem
                if searched:
                    check_candidate_count(corpus.key, writer.size)
                moved(len(ids))
            # Whether all texts of a CSV column are numbers is known only now.
            for attribute, kind in corpus.numeric_attributes().items():
                writer.cast(attribute, kind)
            positions = writer.repeated()
            if positions is not None:
                lines = " and ".join(map(corpus.line_of, positions))
                raise NotConvertible(
                    f"{corpus.key}.id: column {corpus.section.id!r}: id "
                    f"{writer.id(positions[0])!r} stands in {lines}; ids must be distinct"
                )
            written = writer.finish()
            # The unary plus drops the inputs of which nothing was cut or padded.
            cut = +corpus.cut
            padded = +corpus.padded
    except (FormatError, FeatureError) as problem:
        raise NotConvertible(f"{corpus.key}: {problem}") from problem
    except OSError as problem:
        raise _unwritten(f"store {file!r}", problem) from problem
    return manifest.Corpus(file=file, **vars(written), cut=dict(cut), padded=dict(padded))


def store_of(corpus: manifest.Corpus) -> manifest.Corpus:
    """Returns the entry of a corpus as steps take it that do not read its filters."""
    return corpus.model_copy(update={"filters": {}})


def notes_of_lengths(where: str, corpus: manifest.Corpus) -> list[str]:
    """Returns notes about the lists of a written corpus that were cut or padded.

    Args:
      where: The key of the corpus in the recipe.
      corpus: The entry of the corpus in the manifest.
    """
    changes = {"cut": corpus.cut, "padded": corpus.padded}
    return [
        f"{where}: {count} of {corpus.size} lists of input {name!r} were {change}"
        for change, counts in changes.items()
        for name, count in counts.items()
    ]


def write_filter(
    base: Path, name: str, number: int, corpus: manifest.Corpus, attribute: str
) -> manifest.AttributeIndex:
    """Writes the index of one attribute of a written corpus.

    Args:
      base: Directory of the bundle that is being written.
      name: The name of the corpus.
      number: The number of the index.
      corpus: The corpus' entry in the manifest.
      attribute: One of its attributes.
    Raises:
      DestinationError: The files cannot be written.
    """
    entry = manifest.AttributeIndex(
        values=paths.attribute_values(name, number), rows=paths.attribute_rows(name, number)
    )
    try:
        write_attribute_index(base / corpus.file, attribute, base, entry)
    except OSError as problem:
        raise _unwritten(f"filter {attribute!r} of corpus {name!r}", problem) from problem
    return entry


def write_vectors(
    base: Path,
    index: str,
    corpus_name: str,
    corpus: manifest.Corpus,
    tower: CandidateTower,
    moved: Moved = lambda _: None,
    aside: Path | None = None,
) -> int:
    """Runs the written candidate tower over a written corpus, in f32, and writes the vectors in its
    order.

    Args:
      base: Directory of the bundle that is being written; holds store, tables and tower.
      index: The name of the index, whose `indexes/<index>/vectors.bin` is written: raw
        little-endian float32 rows.
      corpus_name: The name of the corpus, for messages.
      corpus: The corpus' entry in the manifest.
      tower: The candidate tower, whose features read the tables of this bundle.
      moved: Takes the number of candidates that were embedded since its last call.
      aside: The file that is written instead; None: the file of the bundle.

    Returns:
      The number of dimensions of the vectors.

    Raises:
      NotConvertible: The tower needs a feature that the corpus lacks, a candidate's value does not
        fit, or its vector is NaN or infinite; the message names the feature and the candidate.
      DestinationError: The file cannot be written.
    """
    where = f"index {index!r}, corpus {corpus_name!r}"
    features = tower.reader
    sources = {source for tensor in tower.entry.inputs for source in tensor.sources}
    inputs = {name: readers for name, readers in features.inputs.items() if sources & set(readers)}
    columns = [name for name in inputs if name in corpus.features]
    try:
        store = MappedColumns(base / corpus.file, corpus)
        network = open_tower(base, tower.entry, "f32")
        # An input that the corpus has no column for must have a default.
        for name in sorted(set(inputs) - set(columns)):
            features.activation(inputs[name][0], {}, 1)
    except FeatureError as problem:
        raise NotConvertible(
            f"{where}: {problem}; name its column in corpora.{corpus_name}.features, or give it "
            "a default"
        ) from problem
    except BundleError as problem:
        raise NotConvertible(f"{where}: {problem}") from problem
    path = aside or base / paths.index_vectors(index)
    dim = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for first in range(0, store.size, BATCH_CANDIDATES):
                end = min(first + BATCH_CANDIDATES, store.size)
                positions = np.arange(first, end, dtype=np.int64)
                vectors = _vectors(network, tower, store, columns, positions, where)
                dim = vectors.shape[1]
                file.write(np.ascontiguousarray(vectors, "<f4").data)
                moved(positions.size)
                # The pages of the tables are released, too: unordered candidates touch another page
                # for each row.
                store.release()
                for table in features.tables.values():
                    table.release()
    except OSError as problem:
        raise _unwritten(f"vectors {paths.index_vectors(index)!r}", problem) from problem
    return dim


def _vectors(
    network: Tower,
    tower: CandidateTower,
    store: MappedColumns,
    column_names: Sequence[str],
    positions: NDArray[np.int64],
    where: str,
) -> NDArray[np.float32]:
    """Returns the vectors of candidates, [n, dim] float32, which can be searched."""
    spec = tower.entry
    features = tower.reader
    activations = {}
    columns = store.features(positions, column_names)
    n = positions.size
    for name in {source for tensor in spec.inputs for source in tensor.sources}:
        try:
            activations[name] = features.activation(name, columns, n).values
        except BundleError as problem:
            candidate = _first_invalid(features, name, store, column_names, positions)
            raise NotConvertible(f"{where}: {candidate}: {problem}") from problem
    try:
        vectors = network.run(tower_inputs(spec.inputs, activations, n))[spec.result]
    except InvalidInput as problem:
        raise NotConvertible(f"{where}: {problem}") from problem
    if vectors.ndim != 2 or len(vectors) != n:
        raise NotConvertible(
            f"{where}: the candidate tower's {spec.result!r} has shape {list(vectors.shape)} for "
            f"{n} candidates; [candidates, dim] was expected"
        )
    unsearchable = find_unsearchable(vectors)
    if unsearchable is not None:
        candidate = _candidate(store, positions[unsearchable.position])
        raise NotConvertible(
            f"{where}: the vector of {candidate} holds {unsearchable.value}; {SEARCHABLE} was "
            "expected: look at its feature values and its rows of the tables"
        )
    return vectors


def _first_invalid(
    features: FeatureReader,
    name: str,
    store: MappedColumns,
    column_names: Sequence[str],
    positions: NDArray[np.int64],
) -> str:
    """Returns the first candidate whose value a feature rejects, in words.

    The error of a batch has the value, but not the candidate. So the candidates are read again, one
    by one.
    """
    for position in positions:
        columns = store.features(np.array([position]), column_names)
        try:
            features.activation(name, columns, 1)
        except BundleError:
            return _candidate(store, position)
    return "a candidate"


def _candidate(store: MappedColumns, position: np.int64) -> str:
    return f"candidate {store.ids(np.array([position])).tolist()[0]!r} (row {position + 1})"


def _unwritten(subject: str, problem: OSError) -> DestinationError:
    return DestinationError(
        f"{subject} cannot be written: {problem.strerror or problem}; free some space, then run "
        "again"
    )
