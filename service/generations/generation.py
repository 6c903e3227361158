"""The frozen loaded set of one bundle: tables, towers, indexes, stores, manifest. It lives and dies as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features import FeatureReader
from bundle.manifest import Corpus, Index, Manifest, Tower
from bundle.stores import CandidateStore
from bundle.tables import TableReader
from runtime import towers as running
from runtime.exact import ExactIndex


class Searcher(Protocol):
    """What finds nearest candidates, approximately or exactly."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns positions [n, k] int64, -1 where there are no more, and scores [n, k] float32, best first."""
        ...


@dataclass(frozen=True, eq=False)
class LoadedTower:
    """A tower that runs, and what the manifest says of it."""

    page: Tower
    network: running.Tower

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the tower takes, each once, in the order of its inputs."""
        return tuple(dict.fromkeys(source for tower_input in self.page.inputs for source in tower_input.sources))

    @cached_property
    def inputs(self) -> tuple[tuple[str, str, tuple[int, ...], np.dtype[Any]], ...]:
        """Of each input: its name, its feature, the shape of one example (-1: any size), its dtype."""
        return tuple(
            (
                each.name,
                each.feature,
                tuple(-1 if size is None else size for size in each.shape[1:]),
                np.dtype(each.dtype),
            )
            for each in self.page.inputs
        )


@dataclass(frozen=True, eq=False)
class LoadedCorpus:
    """Candidates by id, and what the manifest says of them."""

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
    indexes: Mapping[str, LoadedIndex]
    close: Callable[[], Any]
    """Unmaps the tables; called once, after the last request has ended."""
