"""One loaded version of a model: its tables, towers, stores and indexes. Immutable; loaded and
closed as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.features.sources import Fetched, RemoteTable
from bundle.format.formula import Formula
from bundle.format.manifest import Corpus, Index, Manifest, Role, Tower, TowerForm, TowerPart
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import DECIMAL
from bundle.tables.reader import TableReader
from runtime import tower
from runtime.exact import ExactIndex
from runtime.scann import ScannIndex
from service.versions.filter_cache import FilterCache
from service.versions.input_layout import Example, Layout, example_of, lay_out

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import VectorCodes

Rows = NDArray[np.int64]
Stamp = tuple[int, int, int]
"""Identifies one state of a file: modification time (ns), bytes, inode."""
_ROLES: tuple[Role, Role] = ("context", "candidate")
_PLANS_MAX = 256
"""Sets of outputs whose plans are remembered."""


@dataclass(frozen=True, eq=False)
class LoadedPart:
    """A network that runs: a part of a tower, or a whole one; its manifest entry, and which of its
    forms it is.
    """

    entry: TowerPart
    form: TowerForm
    network: tower.Tower


@dataclass(frozen=True, eq=False)
class TowerPlan:
    """What is computed for some outputs of a tower.

    Attributes:
      outputs: the outputs wanted.
      parts: the parts that run, in this order.
      context, candidate: the features they take, by role.
      inputs: what clients send for these features, by role.
      crossed: inputs of contexts that features of candidates read too.
    """

    manifest: Manifest
    outputs: frozenset[str]
    parts: tuple[LoadedPart, ...]
    context: tuple[str, ...]
    candidate: tuple[str, ...]
    inputs: Mapping[Role, tuple[str, ...]]
    crossed: tuple[str, ...]

    @cached_property
    def layout(self) -> Layout:
        """Where features lie when those of a context are looked up once and repeated for its
        candidates.
        """
        return lay_out(self._examples, [part.entry for part in self.parts], frozenset(self.context))

    @cached_property
    def layout_alone(self) -> Layout:
        """Where features lie when each example is context and candidate at once."""
        return lay_out(self._examples, [part.entry for part in self.parts], frozenset())

    @property
    def _examples(self) -> dict[str, Example]:
        return {name: example_of(self.manifest, name) for name in (*self.context, *self.candidate)}


@dataclass(frozen=True, eq=False)
class LoadedTower:
    """A tower that runs, and its manifest entry.

    Attributes:
      parts: each before those that take its outputs; a whole tower is one part.
      device: where it runs.
      formula: orders candidates unless a request brings its own; None: the result does.
    """

    name: str
    entry: Tower
    manifest: Manifest
    parts: tuple[LoadedPart, ...]
    device: str = "cpu"
    formula: Formula | None = None
    _plans: dict[frozenset[str], TowerPlan] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the tower takes, each once, in the order of its inputs."""
        return tuple(
            dict.fromkeys(
                source for tower_input in self.entry.inputs for source in tower_input.sources
            )
        )

    @cached_property
    def inputs(self) -> Mapping[str, Role]:
        """What clients send for the tower, in the order of its features: role by name."""
        return {
            name: self.manifest.role_of(name) for name in self.manifest.inputs_of(self.features)
        }

    @cached_property
    def by_role(self) -> Mapping[Role, Mapping[str, Role]]:
        """`inputs`, split by role."""
        return {
            role: {name: one for name, one in self.inputs.items() if one == role} for role in _ROLES
        }

    @cached_property
    def heads(self) -> frozenset[str]:
        """The outputs that are one number for each example."""
        return frozenset(
            one.name
            for one in self.entry.outputs
            if math.prod(size or 1 for size in one.shape) == 1
        )

    @cached_property
    def result_dim(self) -> int:
        """How many numbers the result has for each example; 1 where its shape is not known."""
        result = next(one for one in self.entry.outputs if one.name == self.entry.result)
        return math.prod(size or 1 for size in result.shape)

    def plan(self, outputs: frozenset[str]) -> TowerPlan:
        """Returns the plan of some outputs; made once for each set of them."""
        found = self._plans.get(outputs)
        if found is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            found = self._plans[outputs] = self._make_plan(outputs)
        return found

    def _make_plan(self, outputs: frozenset[str]) -> TowerPlan:
        needed = set(outputs)
        parts = list[LoadedPart]()
        for part in reversed(self.parts):
            if not needed.isdisjoint(output.name for output in part.entry.outputs):
                needed.update(each.tensor for each in part.entry.inputs)
                parts.insert(0, part)
        taken = {source for part in parts for each in part.entry.inputs for source in each.sources}
        features = [name for name in self.features if name in taken]
        manifest = self.manifest
        context = tuple(name for name in features if manifest.features[name].role == "context")
        candidate = tuple(name for name in features if manifest.features[name].role != "context")
        sent = manifest.inputs_of(features)
        inputs = {
            role: tuple(name for name in sent if self.inputs[name] == role) for role in _ROLES
        }
        crossed = tuple(
            name for name in manifest.inputs_of(candidate) if self.inputs[name] == "context"
        )
        return TowerPlan(manifest, outputs, tuple(parts), context, candidate, inputs, crossed)


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

    async def search(self, wanted: Any, left_s: float) -> tuple[Sequence[Any], float]:
        """Has each shard search the partitions that it holds; takes an IndexSearch, returns what
        each has Found, and the share of the candidates that were searched.
        """


@dataclass(frozen=True, eq=False)
class ServedIndex:
    """An index as requests name it: its candidates, and their vectors here or on shards."""

    name: str
    entry: Index
    corpus: LoadedStore
    here: LoadedIndex | None
    shards: RemoteParts | None


@dataclass(frozen=True)
class Sizes:
    """What of a version bounds the cost of its requests, whatever numbers they name.

    Attributes:
      candidates: of its largest corpus.
      dim: the smallest one of its indexes.
    """

    candidates: int = 0
    dim: int = 1


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

    @cached_property
    def sizes(self) -> Sizes:
        """What bounds the cost of its requests."""
        return Sizes(
            max([corpus.entry.size for corpus in self.corpora.values()], default=0),
            min([index.entry.dim for index in self.indexes.values()], default=1),
        )

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
