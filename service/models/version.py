"""One loaded version of a model: its tables, towers, stores and indexes. Immutable; loaded and closed as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format.manifest import Corpus, Index, Manifest
from bundle.stores.reader import CandidateStore
from bundle.tables.reader import TableReader
from runtime.exact import ExactIndex
from service.models.towers import LoadedTower

Stamp = tuple[int, int, int]
"""Identifies one state of a file: modification time (ns), bytes, inode."""


class Searcher(Protocol):
    """Finds nearest candidates, approximately or exactly."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns positions [n, k] int64, -1 where there are no more, and scores [n, k] float32, best first."""
        ...


@dataclass(frozen=True, eq=False)
class LoadedStore:
    """A store of candidates or contexts by id, and its manifest entry."""

    name: str
    entry: Corpus
    store: CandidateStore


@dataclass(frozen=True, eq=False)
class LoadedIndex:
    """An approximate index, the exact one over the same vectors, and the candidates they are of.

    Attributes:
      vectors: [size, dim] float32, memory-mapped; row = position in the corpus.
    """

    entry: Index
    approximate: Searcher
    exact: ExactIndex
    vectors: NDArray[np.float32]
    corpus: LoadedStore


@dataclass(frozen=True, eq=False)
class ModelVersion:
    """A model version as loaded.

    Attributes:
      close: unmaps the tables; called once, after the last request has ended.
      memory_bytes: upper bound of the memory it takes beside its tables.
      stamp: of its manifest, before it was loaded.
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
    indexes: Mapping[str, LoadedIndex]
    close: Callable[[], Any]
    memory_bytes: int = 0
    stamp: Stamp | None = None


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None: there is none. One that cannot be looked at has a stamp of its own."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # whoever reads it reports why
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
