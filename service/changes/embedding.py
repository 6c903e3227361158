"""The vectors of changed candidates: which of them depend on a row, and their computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.features.columns import Column
from bundle.format.manifest import Corpus, EmbeddedFeature, Manifest
from bundle.tables.id_values import distinct
from runtime.vectors import is_searchable
from service.changes.growing_vectors import Vectors
from service.changes.row_dependents import Positions, RowDependents
from service.changes.store_changes import ChangedCorpus
from service.engine import lookup, towers
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.validation import NotFinite, show_id
from service.errors import SHARD_FAILURES, InvalidArgument, ServiceError
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


class Unembedded:
    """Changed candidates whose vectors are still to be computed from their features and rows."""

    def __init__(self) -> None:
        """Begins without candidates."""
        self._ids: dict[str, list[Ids]] = {}
        """The ids by corpus; an id may occur several times, and its candidate may be gone."""
        self._new: dict[str, set[int | str]] = {}
        """The ids of candidates that have no vectors yet, by corpus."""

    def __bool__(self) -> bool:
        return bool(self._ids)

    def add(self, corpus: str, ids: Ids, are_new: bool) -> None:
        """Adds candidates of a corpus by their ids; `are_new`: they have no vectors yet."""
        self._ids.setdefault(corpus, []).append(ids)
        if are_new:
            self._new.setdefault(corpus, set()).update(ids.tolist())

    def embed(self, served: ModelVersion, corpus_of: Callable[[str], ChangedCorpus]) -> int:
        """Computes the vectors of all candidates. Where this fails, a dependent keeps its vectors,
        and the candidate that the bundle has takes the place of a new one.

        Args:
          served: The version with its changes, but for these vectors.
          corpus_of: Returns the changes of a corpus by its name.

        Returns:
          The number of candidates whose vectors cannot be computed.

        Raises:
          ShardsFailed: A shard does not respond; the next call computes all of them.
        """
        failed_count = 0
        for corpus, parts in self._ids.items():
            store = corpus_of(corpus)
            # Once each, whatever the number of changes, and only where the candidate is still
            # there.
            positions = distinct(store.store.positions(np.concatenate(parts)))
            positions = positions[positions >= 0]
            failed = list[int | str]()
            for start in range(0, positions.size, _CANDIDATES_PER_BATCH):
                part = positions[start : start + _CANDIDATES_PER_BATCH]
                failed += _embed_part(served, store, part)
            new = [key for key in failed if key in self._new.get(corpus, ())]
            if new:
                _restore(served, store, new)
            failed_count += len(failed)
        self._ids = {}
        self._new = {}
        return failed_count


def embed_dependents(
    served: ModelVersion, store: ChangedCorpus, positions: Positions, vectors: dict[str, Vectors]
) -> None:
    """Computes the vectors of candidates with changed rows; those that were sent stay.

    Args:
      served: The version with the changed rows.
      store: The corpus.
      positions: [m] int64, the positions of the candidates.
      vectors: [m, dim] by index, their vectors, which are replaced.

    Raises:
      InvalidArgument: A vector would hold NaN or an infinity, or is too long to be searched.
      ShardsFailed: A shard does not respond.
    """
    for name, index in store.indexes.items():
        (computed,) = (~store.was_sent(name, store.store.ids(positions))).nonzero()
        for start in range(0, computed.size, _CANDIDATES_PER_BATCH):
            part = computed[start : start + _CANDIDATES_PER_BATCH]
            columns = store.store.features(positions[part], store.base.entry.features)
            try:
                with shards_needed(served):
                    vectors[name][part] = embedded(served, index, columns, part.size)
            except NotFinite as problem:
                id_text = _first_unsearchable(served, store, index, positions[part])
                value = (
                    f"numbers with which {problem} is not finite for candidates such as {id_text}"
                )
                expected = "a row of which the candidate tower computes finite vectors"
                raise InvalidArgument.of_field("vectors", value, expected, "has") from problem
            except (BundleError, ServiceError):
                # The tower cannot compute these, whatever the rows.
                continue


def _first_unsearchable(
    served: ModelVersion, store: ChangedCorpus, index: ServedIndex, positions: Positions
) -> str:
    """Returns the id of the first candidate whose vector cannot be searched, as errors show it."""
    for position in np.split(positions, positions.size):
        columns = store.store.features(position, store.base.entry.features)
        try:
            embedded(served, index, columns, 1)
        except NotFinite:
            return show_id(store.store.ids(position).tolist()[0])
    return "these"


def _embed_part(
    served: ModelVersion, store: ChangedCorpus, positions: Positions
) -> list[int | str]:
    """Computes the vectors of some candidates; returns the ids of those for which this fails.

    Raises:
      ShardsFailed: A shard does not respond.
    """
    columns = store.store.features(positions, store.base.entry.features)
    try:
        with shards_needed(served):
            vectors = {
                name: embedded(served, index, columns, positions.size)
                for name, index in store.indexes.items()
            }
        store.embed(positions, vectors)
    except (BundleError, ServiceError, NotFinite):
        # One candidate fails all that are computed together. Computed one by one, the others get
        # their vectors.
        if positions.size > 1:
            parts = np.split(positions, positions.size)
            return [key for part in parts for key in _embed_part(served, store, part)]
        failed: list[int | str] = store.store.ids(positions).tolist()
        return failed
    return []


def _restore(served: ModelVersion, store: ChangedCorpus, ids: Sequence[int | str]) -> None:
    """Gives ids the candidates that the bundle has.

    Raises:
      ShardsFailed: A shard does not respond.
    """
    keys: Ids = np.array(ids, object)
    if store.base.entry.id_dtype == "int64":
        keys = keys.astype(np.int64)
    with shards_needed(served):
        store.restore(keys)


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
    except SHARD_FAILURES as problem:
        if version.shards is None:
            raise
        raise ShardsFailed(str(problem)) from problem


def _reads(manifest: Manifest, name: str, table: str) -> bool:
    """Returns whether a feature reads a table."""
    feature = manifest.features[name]
    return isinstance(feature, EmbeddedFeature) and not feature.indicator and feature.table == table
