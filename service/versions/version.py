"""One loaded version of a model: its tables, towers, stores and indexes. Immutable; loaded and
closed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.features.sources import Fetched, RemoteTable
from bundle.format.manifest import Corpus, Index, Manifest
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import DECIMAL
from bundle.tables.reader import TableReader
from runtime.exact import ExactIndex
from runtime.scann import ScannIndex
from service.versions.filter_cache import FilterCache
from service.versions.loaded_towers import LoadedTower

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import VectorCodes

Rows = NDArray[np.int64]
Stamp = tuple[int, int, int]
"""Identifies one state of a file: modification time (ns), bytes, inode."""


class Denied:
    """Candidates of one store that operators withdrew: replaced as a whole while the store is
    served.

    Attributes:
      ids: of the deny list, of which the store may lack some.
      positions: [d] uint32, ascending.
    """

    def __init__(self) -> None:
        self.ids: tuple[str, ...] = ()
        self.positions: NDArray[Any] = np.empty(0, np.uint32)


@dataclass(frozen=True, eq=False)
class FilteredCorpus:
    """A corpus as filters need it: its manifest entry, and the indexes of the attributes that
    requests filter by.
    """

    name: str
    entry: Corpus
    filters: Mapping[str, AttributeIndex]


@dataclass(frozen=True, eq=False)
class LoadedStore(FilteredCorpus):
    """A store of candidates or contexts by id, and which of them are denied."""

    store: CandidateStore
    denied: Denied = field(default_factory=Denied)

    def deny(self, ids: tuple[str, ...]) -> None:
        """Denies the candidates that have one of these ids, and no others."""
        if ids != self.denied.ids:
            strings = self.entry.id_dtype == "string"
            known = (
                np.array(ids, object)
                if strings
                else np.array([*map(int, filter(_is_int64, ids))], np.int64)
            )
            positions = np.unique(self.store.positions(known))
            self.denied.ids = ids
            self.denied.positions = positions[positions >= 0].astype(np.uint32)


@dataclass(frozen=True, eq=False)
class LoadedIndex:
    """An approximate index, and the exact one over the same vectors.

    Attributes:
      vectors: [size, dim] float32, memory-mapped; row = position in the corpus, from `first` on.
      corpus: its filters are of these candidates alone.
      compiled: filters of this index and the others of the process.
      codes: of the vectors; None: the index has none.
      plans: of searches, by what they depend on; kept by `plan_search`.
    """

    entry: Index
    approximate: ScannIndex
    exact: ExactIndex
    vectors: NDArray[np.float32]
    corpus: FilteredCorpus
    compiled: FilterCache
    first: int = 0
    codes: VectorCodes | None = None
    plans: dict[Hashable, Any] = field(default_factory=dict)


class RemoteParts(Protocol):
    """Reaches the shards that hold the rest of a version; each method raises ServiceError.

    Attributes:
      tables: that they hold.
    """

    tables: Mapping[str, RemoteTable]

    async def rows(self, wanted: Mapping[str, Rows], left_s: float) -> Fetched:
        """Fetches distinct ascending rows, by layout."""

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Fetches vectors of an index, in the order of the positions."""

    async def search(self, wanted: Any, left_s: float) -> Sequence[Any]:
        """Has each shard search the partitions that it holds; takes an IndexSearch, returns what
        each has Found.
        """


@dataclass(frozen=True, eq=False)
class ServedIndex:
    """An index as requests name it: its candidates, and their vectors here or on shards."""

    name: str
    entry: Index
    corpus: LoadedStore
    here: LoadedIndex | None
    shards: RemoteParts | None


@dataclass(frozen=True, eq=False)
class ModelVersion:
    """A model version as loaded.

    Attributes:
      close: unmaps the tables; called once, after the last request has ended.
      memory_bytes: upper bound of the memory it takes beside its tables.
      stamp: of its manifest, before it was loaded.
      held: what of the manifest is on this machine; None: all of it.
      fingerprint: crc32c of the manifest.
      shards: reach what is held elsewhere; None: nothing is.
      parts: of a shard, what it holds of indexes.
    """

    model: str
    version: int
    directory: Path
    manifest: Manifest
    tables: Mapping[str, TableReader]
    reader: FeatureReader
    towers: Mapping[str, LoadedTower]
    corpora: Mapping[str, LoadedStore]
    contexts: Mapping[str, LoadedStore]
    indexes: Mapping[str, ServedIndex]
    close: Callable[[], Any]
    memory_bytes: int = 0
    stamp: Stamp | None = None
    held: Manifest | None = None
    fingerprint: int = 0
    shards: RemoteParts | None = None
    parts: Mapping[str, LoadedIndex] = field(default_factory=dict)

    @property
    def files(self) -> Manifest:
        """What of the manifest is on this machine."""
        return self.held or self.manifest

    @property
    def denied(self) -> list[NDArray[Any]]:
        """The denied positions of every corpus; other arrays once others are denied."""
        return [corpus.denied.positions for corpus in self.corpora.values()]

    def deny(self, ids: tuple[str, ...]) -> None:
        """Denies the candidates that have one of these ids, in every corpus; replaces those denied
        before.
        """
        for corpus in self.corpora.values():
            corpus.deny(ids)


def _is_int64(text: str) -> bool:
    return bool(DECIMAL.fullmatch(text)) and -(2**63) <= int(text) < 2**63


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None: there is none. One that cannot be looked at has a stamp of
    its own.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # whoever reads it reports why
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
