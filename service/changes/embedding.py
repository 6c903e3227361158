"""The vectors of changed candidates: which of them depend on a row, and their computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, RowUnavailable
from bundle.features.columns import Column
from bundle.format.manifest import Corpus, EmbeddedFeature, Manifest
from runtime.vectors import is_searchable
from service.changes.growing_vectors import Vectors
from service.changes.row_dependents import Positions, RowDependents
from service.changes.store_changes import ChangedCorpus
from service.engine import lookup, towers
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.validation import NotFinite
from service.errors import SHARD_FAILURES, ServiceError
from service.versions.version import ModelVersion, ServedIndex

Ids = NDArray[Any]

_CANDIDATES_PER_BATCH = 1024
"""Number of candidates whose vectors are computed at a time, which limits the memory of inputs."""


class ShardsFailed(Exception):
    """Shards that a router needs to apply a change do not respond now."""


class Dependents:
    """The candidates of a version whose vectors depend on rows of a table."""

    def __init__(self, loaded: ModelVersion) -> None:
        """Begins without candidates.

        Args:
          loaded: The version as it was loaded.
        """
        self._loaded = loaded
        self._dependents: dict[tuple[str, str], RowDependents] = {}
        """The candidates of a corpus that read a table, by both names."""

    def positions(
        self,
        table: str,
        rows: NDArray[np.int64],
        keys: Ids,
        corpus_of: Callable[[str], ChangedCorpus],
    ) -> dict[str, Positions]:
        """Returns the candidates whose vectors depend on some rows, by corpus.

        Args:
          table: The name of the table.
          rows: The rows of the table.
          keys: Keys of the table, known or about to be added, whose rows are not in its files.
          corpus_of: Returns the changes of a corpus by its name.
        """
        dependents_by_corpus = {}
        for corpus in self._loaded.corpora:
            features = self._features_of(corpus, table)
            if features:
                store = corpus_of(corpus).store
                dependents = self._dependents_of(corpus, table, features)
                dependents_by_corpus[corpus] = dependents.positions(store, rows, keys)
        return {
            corpus: positions
            for corpus, positions in dependents_by_corpus.items()
            if positions.size
        }

    def forget_from(self, corpus: str, position: int) -> None:
        """Forgets the candidates from a position on: others have their positions now."""
        for (name, _), dependents in self._dependents.items():
            if name == corpus:
                dependents.forget_from(position)

    def _features_of(self, corpus: str, table: str) -> list[str]:
        """Returns the features by which candidate towers over a corpus read a table."""
        loaded = self._loaded
        names: dict[str, None] = {}
        for index in loaded.indexes.values():
            if index.entry.corpus == corpus:
                features = loaded.towers[index.entry.candidate_tower].features
                names |= dict.fromkeys(features)
        return [name for name in names if _reads(loaded.manifest, name, table)]

    def _dependents_of(self, corpus: str, table: str, features: Sequence[str]) -> RowDependents:
        """Returns the candidates of a corpus that read a table by some features."""
        # Made only at the first change of a row of the table, since it looks up all candidates.
        key = (corpus, table)
        if key not in self._dependents:
            loaded = self._loaded
            stored = loaded.corpora[corpus].entry.features
            self._dependents[key] = RowDependents(loaded.manifest, loaded.reader, features, stored)
        return self._dependents[key]


def embed_all(served: ModelVersion, store: ChangedCorpus) -> None:
    """Computes the vectors that a corpus lacks. Where this fails, a candidate keeps the vectors
    that the log or the bundle has; without such vectors, it is hidden.

    Args:
      served: The version with its changes, but for these vectors.
      store: The corpus.

    Raises:
      ShardsFailed: A shard does not respond; the next call computes all of them.
    """
    positions = store.unembedded
    vectors = store.vectors(positions)
    problems = embed_candidates(served, store, positions, vectors)
    store.embed(positions, vectors)
    is_embedded = np.ones(positions.size, bool)
    is_embedded[[*problems]] = False
    store.note_embedded(store.store.ids(positions), is_embedded)


def embed_candidates(
    served: ModelVersion, store: ChangedCorpus, positions: Positions, vectors: dict[str, Vectors]
) -> dict[int, Exception]:
    """Computes the vectors of candidates; those that were sent stay, and those that cannot be
    computed.

    Args:
      served: The version with all changes but these vectors.
      store: The corpus.
      positions: [m] int64, the positions of the candidates.
      vectors: [m, dim] by index, their vectors, which are replaced.

    Returns:
      Why a vector cannot be computed, by the number of its candidate among the m.

    Raises:
      ShardsFailed: A shard does not respond.
    """
    problems: dict[int, Exception] = {}
    for name, index in store.indexes.items():
        (computed,) = (~store.was_sent(name, store.store.ids(positions))).nonzero()
        for start in range(0, computed.size, _CANDIDATES_PER_BATCH):
            part = computed[start : start + _CANDIDATES_PER_BATCH]
            problems |= _embed_part(served, store, index, positions, part, vectors[name])
    return problems


def _embed_part(
    served: ModelVersion,
    store: ChangedCorpus,
    index: ServedIndex,
    positions: Positions,
    part: NDArray[np.int64],
    vectors: Vectors,
) -> dict[int, Exception]:
    """Computes some of the vectors of an index; `part`: their numbers. See `embed_candidates`."""
    columns = store.store.features(positions[part], store.base.entry.features)
    try:
        with shards_needed(served):
            vectors[part] = embedded(served, index, columns, part.size)
    except (BundleError, ServiceError, NotFinite) as problem:
        if part.size == 1:
            return {int(part[0]): problem}
        # One candidate fails all that are computed together. Of ever smaller parts, all but the
        # one with it get their vectors.
        problems: dict[int, Exception] = {}
        for half in np.array_split(part, 2):
            problems |= _embed_part(served, store, index, positions, half, vectors)
        return problems
    return {}


def embedded(
    version: ModelVersion, index: ServedIndex, columns: Mapping[str, Column], n: int
) -> Vectors:
    """Returns the vectors of candidates by the candidate tower of an index, [n, dim].

    Args:
      version: The version with its changes.
      index: The index.
      columns: The features of n candidates.
      n: The number of candidates.

    Raises:
      BundleError: A column does not fit its feature.
      ServiceError: The tower cannot compute with these features.
      NotFinite: A vector would hold NaN or an infinity, or is too long to be searched.
      ShardsFailed: No shard could give a row. A request may count it as unknown, but vectors last.
    """
    tower = version.towers[index.entry.candidate_tower]
    execution = Execution("change")
    inputs = {name: column for name, column in columns.items() if name in tower.inputs}
    fitted = lookup.fit(version, inputs, n, execution)
    try:
        vectors: Vectors = completed(towers.result(version, tower, fitted, n, execution))
    finally:
        # The threads that make changes end soon, and a network is dear to prepare.
        tower.release_thread()
    if execution.rows_lost:
        raise ShardsFailed(f"no shard could give {execution.rows_lost} rows of its candidates")
    if not is_searchable(vectors).all():
        raise NotFinite(f"the product of two vectors of index {index.name!r}")
    return vectors


def missing_inputs(loaded: ModelVersion, corpus: Corpus, index: ServedIndex) -> list[str]:
    """Returns the inputs of the candidate tower of an index that its corpus does not hold, and that
    have no default: without them, no vector can be computed.

    Args:
      loaded: The version.
      corpus: The manifest entry of the corpus.
      index: The index.
    """
    tower = loaded.towers[index.entry.candidate_tower]
    return [
        name
        for name in tower.inputs
        if name not in corpus.features and loaded.manifest.default_of(name) is None
    ]


@contextmanager
def shards_needed(version: ModelVersion) -> Iterator[None]:
    """Raises ShardsFailed for an error of which shards of a version are at fault, and not a
    change.
    """
    try:
        yield
    except (*SHARD_FAILURES, RowUnavailable) as problem:
        if version.shards is None:
            raise
        raise ShardsFailed(str(problem)) from problem


def _reads(manifest: Manifest, name: str, table: str) -> bool:
    """Returns whether a feature reads a table."""
    feature = manifest.features[name]
    return isinstance(feature, EmbeddedFeature) and not feature.indicator and feature.table == table
