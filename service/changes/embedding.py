"""Computes the vectors of changed candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, RowUnavailable
from bundle.features.columns import Column
from bundle.format.manifest import Corpus
from runtime.vectors import is_searchable
from service.changes.growing_vectors import Vectors
from service.changes.store_changes import ChangedCorpus, Positions
from service.engine import lookup, towers
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.validation import NotFinite
from service.errors import SHARD_FAILURES, ServiceError
from service.versions.version import ModelVersion, ServedIndex

_CANDIDATES_PER_BATCH = 1024
"""Number of candidates whose vectors are computed at a time, which limits the memory of inputs."""


class ShardsFailed(Exception):
    """Shards that a router needs to apply a change do not respond now."""


def embed_all(loaded: ModelVersion, store: ChangedCorpus) -> None:
    """Computes the vectors that a corpus lacks. A candidate of which this fails stays hidden.

    Args:
      loaded: The version as it was loaded.
      store: The corpus.

    Raises:
      ShardsFailed: A shard does not respond; the next call computes all of them.
    """
    positions = store.unembedded
    if not positions.size:
        return
    is_embedded = np.ones(positions.size, bool)
    for name, index in store.indexes.items():
        # Vectors that are in the changes or in the bundle stay.
        (lacking,) = (~store.is_logged(name, positions)).nonzero()
        for start in range(0, lacking.size, _CANDIDATES_PER_BATCH):
            part = lacking[start : start + _CANDIDATES_PER_BATCH]
            is_embedded[part] &= _embed_part(loaded, store, index, positions[part])
    store.note_embedded(store.store.ids(positions), is_embedded)


def _embed_part(
    loaded: ModelVersion, store: ChangedCorpus, index: ServedIndex, positions: Positions
) -> NDArray[np.bool_]:
    """Computes the vectors of some candidates; returns of which this was possible."""
    columns = store.store.features(positions, store.base.entry.features)
    try:
        with shards_needed(loaded):
            vectors = embedded(loaded, index, columns, positions.size)
    except (BundleError, ServiceError, NotFinite):
        if positions.size == 1:
            return np.zeros(1, bool)
        # One candidate fails all that are computed together. Of ever smaller parts, all but the
        # one with it get their vectors.
        halves = np.array_split(positions, 2)
        return np.concatenate([_embed_part(loaded, store, index, half) for half in halves])
    store.embed(index.name, positions, vectors)
    return np.ones(positions.size, bool)


def embedded(
    version: ModelVersion, index: ServedIndex, columns: Mapping[str, Column], n: int
) -> Vectors:
    """Returns the vectors of candidates by the candidate tower of an index, [n, dim].

    Args:
      version: The version.
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
