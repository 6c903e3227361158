"""The frozen loaded set of one bundle: tables, towers, indexes, stores, manifest. It lives and dies as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features import FeatureReader
from bundle.manifest import Corpus, Index, Manifest
from bundle.stores import CandidateStore
from bundle.tables import TableReader
from runtime.exact import ExactIndex
from service.generations.loaded_towers import LoadedTower


class Searcher(Protocol):
    """What finds nearest candidates, approximately or exactly."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns positions [n, k] int64, -1 where there are no more, and scores [n, k] float32, best first."""
        ...


@dataclass(frozen=True, eq=False)
class LoadedCorpus:
    """Candidates, or contexts, by id, and what the manifest says of them."""

    name: str
    page: Corpus
    store: CandidateStore


@dataclass(frozen=True, eq=False)
class LoadedIndex:
    """An index with its exact sibling, the vectors it was built from, and its corpus."""

    page: Index
    approximate: Searcher
    exact: ExactIndex
    vectors: NDArray[np.float32]
    """[size, dim] float32, mapped: position = row."""
    corpus: LoadedCorpus


@dataclass(frozen=True, eq=False)
class Generation:
    """A bundle version as loaded here; immutable, pinned by requests, its version in every answer."""

    model: str
    version: int
    directory: Path
    manifest: Manifest
    tables: Mapping[str, TableReader]
    reader: FeatureReader
    towers: Mapping[str, LoadedTower]
    corpora: Mapping[str, LoadedCorpus]
    contexts: Mapping[str, LoadedCorpus]
    indexes: Mapping[str, LoadedIndex]
    close: Callable[[], Any]
    """Unmaps the tables; called once, after the last request has ended."""
    memory_bytes: int = 0
    """What it may take beside its tables, at most."""
    loaded_at: float = field(default_factory=time.time)
    """Seconds since 1970."""
