"""One loaded version of a model: its tables, towers, stores and indexes. Immutable; loaded and
closed as a whole. What changes while it is served is in objects that it refers to: the deny lists
of its stores (`deny_list.py`), caches, and the filters of the process (`filter_cache.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.bounded_cache import BoundedCache
from bundle.features.reader import FeatureReader
from bundle.features.sources import Fetched, RemoteTable
from bundle.format.formula import Formula
from bundle.format.input_lengths import InputLength
from bundle.format.manifest import (
    CandidateList,
    Corpus,
    Index,
    Manifest,
    Role,
    Tower,
    TowerForm,
    TowerInput,
    TowerPart,
)
from bundle.format.search_costs import SearchCosts
from bundle.format.towers import SCORE_BINS_MAX
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.overlay import ChangedAttributeIndex, StoreSnapshot
from bundle.stores.reader import CandidateStore
from bundle.tables.reader import TableReader
from runtime import tower
from runtime.candidate_index import CandidateIndex
from runtime.exact import ExactIndex, VectorBlock
from runtime.vectors import is_searchable
from service.context_states.states import ContextStates
from service.contract.messages import Sizes
from service.versions.deny_list import DeniedParts, DenyList, Withdrawn, ids_among
from service.versions.filter_cache import FilterCache
from service.versions.input_layout import Example, Layout, example_of, lay_out

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.code_blocks import BlockedCodes
    from runtime.codes import VectorCodes

Rows = NDArray[np.int64]
Store = CandidateStore | StoreSnapshot
Stamp = tuple[int, int, int]
"""Identifies one state of a file: modification time (ns), bytes, inode."""
_ROLES: tuple[Role, Role] = ("context", "candidate")
_TOWER_PLANS_MAX = 256
"""Maximum number of plans that are kept of a tower: clients may name any set of outputs."""
_STATEMENTS_MAX = 256
"""Maximum number of shapes of requests that a version remembers: clients choose formulas, and with
them the shapes.
"""
_SEARCH_PLANS_MAX = 1000
"""Maximum number of plans that are kept of an index: clients choose k, recall and filters."""
_NOT_CACHED = FilterCache(0)
"""The cache of filters of changed candidates: it holds none, since they would soon be outdated."""


@dataclass(frozen=True, eq=False)
class LoadedPart:
    """A network that runs: a part of a tower, or a whole one.

    Attributes:
      entry: The manifest entry of the part.
      form: The form of the part that runs.
      network: The network.
    """

    entry: TowerPart
    form: TowerForm
    network: tower.Tower


@dataclass(frozen=True, eq=False)
class TowerPlan:
    """What is computed for some outputs of a tower.

    Attributes:
      manifest: The manifest of the version.
      outputs: The outputs that are computed.
      parts: The parts that run, in this order.
      context: The features of contexts that the parts take.
      candidate: The features of candidates that the parts take.
      inputs: The inputs that clients send for these features, by role.
      crossed: The inputs of contexts that features of candidates read, too.
      states: The states of the contexts of one of the parts; None: they are not stored.
    """

    manifest: Manifest
    outputs: frozenset[str]
    parts: tuple[LoadedPart, ...]
    context: tuple[str, ...]
    candidate: tuple[str, ...]
    inputs: Mapping[Role, tuple[str, ...]]
    crossed: tuple[str, ...]
    states: ContextStates | None = None

    @cached_property
    def histories(self) -> Mapping[str, InputLength]:
        """The lengths of the inputs that hold the events of histories whose states are stored."""
        if self.states is None:
            return {}
        features = [
            entry.feature
            for entry in self.states.part.inputs
            if entry.name in self.states.extension.sequences
        ]
        names = self.manifest.inputs_of(features)
        lengths = {name: self.manifest.length_of(name) for name in names}
        return {name: length for name, length in lengths.items() if length is not None}

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
      name: The name of the tower.
      entry: The manifest entry of the tower.
      manifest: The manifest of the version.
      parts: The parts of the tower, each before the parts that take its outputs; a whole tower is
        one part.
      device: The device that the tower runs on.
      formula: The formula that orders candidates unless a request brings its own; None: the result
        orders them.
      states: The states of the contexts of one of the parts; None: they are not stored.
    """

    name: str
    entry: Tower
    manifest: Manifest
    parts: tuple[LoadedPart, ...]
    device: str = "cpu"
    formula: Formula | None = None
    states: ContextStates | None = None
    _plans: BoundedCache[frozenset[str], TowerPlan] = field(
        default_factory=lambda: BoundedCache(_TOWER_PLANS_MAX), init=False, repr=False
    )

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that the tower takes, each once, in the order of its inputs."""
        return _sources(self.entry.inputs)

    @cached_property
    def inputs(self) -> Mapping[str, Role]:
        """The role of each input that clients send for the tower, in the order of its features."""
        return {
            name: self.manifest.role_of(name) for name in self.manifest.inputs_of(self.features)
        }

    @cached_property
    def by_role(self) -> Mapping[Role, Mapping[str, Role]]:
        """`inputs`, split by role."""
        roles: dict[Role, dict[str, Role]] = {role: {} for role in _ROLES}
        for name, role in self.inputs.items():
            roles[role][name] = role
        return roles

    @cached_property
    def heads(self) -> frozenset[str]:
        """The outputs that are one number for each example."""
        return frozenset(
            output.name
            for output in self.entry.outputs
            if math.prod(size or 1 for size in output.shape) == 1
        )

    @cached_property
    def result_dim(self) -> int:
        """The number of values of the result for each example; 1 where its shape is not known."""
        result = next(output for output in self.entry.outputs if output.name == self.entry.result)
        return math.prod(size or 1 for size in result.shape)

    @cached_property
    def score_edges(self) -> NDArray[np.float64]:
        """The edges of the bins of the scores at export, [bins - 1] float64, ascending; empty for a
        tower without such bins.
        """
        scores = self.entry.scores
        if scores is None:
            return np.empty(0, np.float64)
        return np.array(scores.edges, np.float64)

    @cached_property
    def score_shares(self) -> tuple[float, ...]:
        """The share of the examples at export in each of SCORE_BINS_MAX bins of scores; 0 in bins
        that the tower does not have.
        """
        shares: tuple[float, ...] = ()
        if self.entry.scores is not None:
            shares = tuple(self.entry.scores.shares)
        return (*shares, *[0.0] * (SCORE_BINS_MAX - len(shares)))

    def plan(self, outputs: frozenset[str]) -> TowerPlan:
        """Returns the plan of some outputs, which the first request for these outputs makes."""
        plan = self._plans.get(outputs)
        if plan is None:
            plan = self._plans.keep(outputs, self._make_plan(outputs))
        return plan

    @property
    def networks(self) -> tuple[tower.Tower, ...]:
        """Everything that runs."""
        networks = tuple(part.network for part in self.parts)
        if self.states is not None:
            networks += (self.states.network,)
        return networks

    def release_thread(self) -> None:
        """Lets other threads run what was prepared for the calling thread."""
        for network in self.networks:
            network.release_thread()

    def _make_plan(self, outputs: frozenset[str]) -> TowerPlan:
        # From the last part back: a part runs if an output of it is wanted, or is the input of a
        # part that runs.
        needed = set(outputs)
        parts = list[LoadedPart]()
        for part in reversed(self.parts):
            if not needed.isdisjoint(output.name for output in part.entry.outputs):
                needed.update(part_input.tensor for part_input in part.entry.inputs)
                parts.insert(0, part)

        part_inputs = [part_input for part in parts for part_input in part.entry.inputs]
        read_features = set(_sources(part_inputs))
        features = [name for name in self.features if name in read_features]
        manifest = self.manifest
        context = tuple(name for name in features if manifest.features[name].role == "context")
        candidate = tuple(name for name in features if manifest.features[name].role != "context")

        input_names = manifest.inputs_of(features)
        inputs = {
            role: tuple(name for name in input_names if self.inputs[name] == role)
            for role in _ROLES
        }
        crossed = tuple(
            name for name in manifest.inputs_of(candidate) if self.inputs[name] == "context"
        )
        states = self.states
        if states is not None and all(part.entry.name != states.extension.of for part in parts):
            states = None
        return TowerPlan(
            manifest, outputs, tuple(parts), context, candidate, inputs, crossed, states
        )


def _sources(inputs: Iterable[TowerInput]) -> tuple[str, ...]:
    """Returns the features that inputs take, each of them once."""
    features: dict[str, None] = {}
    for tower_input in inputs:
        features |= dict.fromkeys(tower_input.sources)
    return tuple(features)


@dataclass(frozen=True, eq=False)
class LoadedList:
    """Lists of candidates by segment.

    Attributes:
      name: The name of the lists.
      entry: The manifest entry of the lists.
      ids: The ids of each segment, in the order of its list.
    """

    name: str
    entry: CandidateList
    ids: Mapping[str, NDArray[Any]]

    @property
    def segments(self) -> KeysView[str]:
        """The names of the segments."""
        return self.ids.keys()

    @cached_property
    def size_max(self) -> int:
        """The number of candidates of the largest segment."""
        return max([part.size for part in self.ids.values()], default=0)

    @cached_property
    def _positions(self) -> BoundedCache[str, tuple[Store, Rows]]:
        """The positions of segments in one state of their corpus, which requests share until it
        changes.
        """
        return BoundedCache(len(self.ids) + 1)

    def positions(self, store: Store, segment: str) -> Rows:
        """Returns the positions of the candidates of a segment in a state of their corpus, [m]
        int64, without the candidates that were deleted or
        have expired.

        Args:
          store: The corpus.
          segment: The segment; a segment without a list has the list of the default segment.
        """
        if segment not in self.ids:
            segment = self.entry.default
        cached_store, positions = self._positions.get(segment, (None, None))
        if cached_store is not store or positions is None:
            positions = store.positions(self.ids[segment])
            self._positions.keep(segment, (store, positions))
        if isinstance(store, StoreSnapshot):
            positions = store.unexpired(positions, time.time())
        return positions[positions >= 0]


@dataclass(frozen=True, eq=False)
class FilteredCorpus:
    """A corpus as filters need it: its manifest entry, and the indexes of the attributes that
    requests filter by.
    """

    name: str
    entry: Corpus
    filters: Mapping[str, AttributeIndex | ChangedAttributeIndex]


@dataclass(frozen=True, eq=False)
class LoadedStore(FilteredCorpus):
    """A store of candidates or contexts by id, and which of them are denied.

    Attributes:
      store: The store.
      deny_list: The candidates that operators withdrew.
      withdrawn: The candidates that no request may find, with those added since it was loaded.
    """

    store: Store
    deny_list: DenyList = field(default_factory=DenyList)
    withdrawn: Withdrawn = field(default_factory=Withdrawn)

    @property
    def unavailable(self) -> NDArray[Any]:
        """The positions that no request may find now, [m] uint32, ascending; see
        `Withdrawn.positions`.
        """
        return self.withdrawn.positions(self.store, self.deny_list.positions)

    @property
    def count(self) -> int:
        """The number of candidates now, denied ones included."""
        if not isinstance(self.store, StoreSnapshot):
            return self.entry.size
        return self.entry.size - self.store.expired_count(time.time())

    def without_known(self, texts: Sequence[str]) -> list[str]:
        """Returns those of some ids, as texts, that no candidate has."""
        ids, is_id = ids_among(texts, self.entry.id_dtype)
        is_known = np.zeros(len(texts), bool)
        is_known[is_id] = self.store.positions(ids) >= 0
        return [text for text, known in zip(texts, is_known, strict=True) if not known]


@dataclass(frozen=True, eq=False)
class LoadedIndex:
    """An approximate index, and the exact one over the same vectors.

    Attributes:
      entry: The manifest entry of the index.
      approximate: The approximate index; None: all searches are exact.
      exact: The exact index.
      vectors: [size, dim] float32, memory-mapped; row = position in the corpus, from `first` on.
      corpus: The corpus, with filters of these candidates alone.
      compiled: The compiled filters of this index and the others of the process.
      first: The position of the first candidate in the corpus.
      codes: The codes of the vectors; None: the index has none.
      plans: The plans of searches, by what they depend on, to which `plan_search` adds.
    """

    entry: Index
    approximate: CandidateIndex | None
    exact: ExactIndex
    vectors: NDArray[np.float32]
    corpus: FilteredCorpus
    compiled: FilterCache
    first: int = 0
    codes: VectorCodes | BlockedCodes | None = None
    plans: BoundedCache[Hashable, Any] = field(
        default_factory=lambda: BoundedCache(_SEARCH_PLANS_MAX)
    )

    @cached_property
    def costs(self) -> SearchCosts | None:
        """The costs of the parts of a search of a tree; typical costs, if those of the manifest
        cannot be true.
        """
        costs = self.entry.costs
        if costs is not None and self.entry.implausible_cost(self.corpus.entry.size):
            return SearchCosts.typical(self.entry.dim, coded=self.entry.codes is not None)
        return costs

    @cached_property
    def unsearchable(self) -> NDArray[np.uint32]:
        """The positions of vectors that cannot be searched, [m] uint32, ascending. All vectors are
        read, so that only a score that is not finite is a reason to call it.
        """
        return (~is_searchable(self.vectors)).nonzero()[0].astype(np.uint32)


@dataclass(frozen=True, eq=False)
class LiveIndex(LoadedIndex):
    """The candidates that were added or replaced since the bundle was loaded, without those that
    ended. They are searched by their codes, or exactly if they have none.

    Attributes:
      live: [m] uint32 positions, ascending, of the candidates that have not ended.
    """

    codes: BlockedCodes | None = None
    live: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    @classmethod
    def of(
        cls,
        entry: Index,
        exact: ExactIndex,
        vectors: NDArray[np.float32],
        corpus: FilteredCorpus,
        live: NDArray[np.uint32],
        codes: BlockedCodes | None,
    ) -> LiveIndex:
        """Returns an index of one state, whose filters are not kept for others.

        Args:
          entry, exact, codes: As in LoadedIndex.
          vectors: [m, dim] float32 of all candidates behind those of the bundle, ended ones
            included.
          corpus: The corpus, with filters of these candidates alone.
          live: As in the attributes.
        """
        return cls(entry, None, exact, vectors, corpus, _NOT_CACHED, codes=codes, live=live)

    @cached_property
    def costs(self) -> SearchCosts:
        """Typical costs: those of the manifest are of the bundle's candidates."""
        return SearchCosts.typical(self.entry.dim, coded=True)

    @cached_property
    def block(self) -> VectorBlock:
        """The vectors of all positions, those that ended included; no copy."""
        return VectorBlock(self.vectors, self.entry.distance)

    @cached_property
    def live_block(self) -> VectorBlock:
        """The vectors of the live candidates, side by side."""
        vectors = self.vectors.take(self.live, axis=0, mode="clip")
        return VectorBlock(vectors, self.entry.distance)


class RemoteParts(Protocol):
    """Reaches the shards that hold the rest of a version; each method raises ServiceError.

    Attributes:
      tables: The tables that the shards hold.
    """

    tables: Mapping[str, RemoteTable]

    async def rows(self, wanted: Mapping[str, Rows], left_s: float) -> Fetched:
        """Fetches distinct ascending rows, by layout."""

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Fetches vectors of an index.

        Args:
          index: The name of the index.
          positions: [m] int64, in any order; duplicates are allowed.
          left_s: The time that is left, in seconds.

        Returns:
          [m, dim] float32, in the order of the positions.
        """

    async def search(self, wanted: Any, left_s: float) -> tuple[Sequence[Any], float]:
        """Has each shard search the partitions that it holds.

        Args:
          wanted: An IndexSearch.
          left_s: The time that is left, in seconds.

        Returns:
          The Neighbors that each shard has found, and the share of the candidates that were
          searched.
        """


@dataclass(frozen=True, eq=False)
class ServedIndex:
    """An index as requests name it: its candidates, and their vectors here or on shards.

    Attributes:
      name: The name of the index.
      entry: The manifest entry of the index.
      corpus: The corpus of its candidates.
      here: The index on this machine; None: shards hold it.
      shards: Reach what shards hold; None: the service is no router.
      compiled: The compiled filters of the index and the others of the process.
      added: The candidates behind those of the bundle, which were added or replaced while the
        version was served; None: there are none.
    """

    name: str
    entry: Index
    corpus: LoadedStore
    here: LoadedIndex | None
    shards: RemoteParts | None
    compiled: FilterCache
    added: LiveIndex | None = None
    _denied: BoundedCache[None, DeniedParts] = field(
        default_factory=lambda: BoundedCache(1), init=False, repr=False
    )

    @property
    def unsearchable(self) -> NDArray[np.uint32]:
        """The candidates here whose vectors cannot be searched; see `LoadedIndex.unsearchable`."""
        assert self.here is not None  # noqa: S101 - shards leave out theirs
        if self.added is None:
            return self.here.unsearchable
        added = self.added.unsearchable + np.uint32(self.base_size)
        return np.concatenate([self.here.unsearchable, added])

    @cached_property
    def base_size(self) -> int:
        """The number of candidates that the bundle has, for an index of which some changed."""
        store = self.corpus.store
        assert isinstance(store, StoreSnapshot)  # noqa: S101 - candidates were added
        return store.base_size

    def divided(
        self, positions: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Divides ascending positions, [m] uint32, into those in the bundle and those behind it,
        which are counted from there.
        """
        boundary = positions.searchsorted(self.base_size)
        return positions[:boundary], positions[boundary:] - np.uint32(self.base_size)

    @property
    def denied(self) -> DeniedParts:
        """The positions of the corpus that no request may find."""
        unavailable = self.corpus.unavailable
        denied = self._denied.get(None)
        if denied is not None and denied.positions is unavailable:
            return denied
        sizes = self.base_size, self.corpus.store.size - self.base_size
        return self._denied.keep(None, DeniedParts(unavailable, self.divided(unavailable), sizes))


@dataclass(frozen=True, eq=False)
class ModelVersion:
    """A model version as loaded.

    Attributes:
      model: The name of the model.
      version: The number of the version.
      directory: The directory of its bundle.
      manifest: The manifest of its bundle.
      tables: The tables by name.
      reader: Reads the features.
      towers: The towers by name.
      corpora: The stores of candidates by name.
      contexts: The stores of contexts by name.
      indexes: The indexes by name.
      close: Unmaps the tables; called once, after the last request has ended.
      memory_bytes: An upper bound of the memory that the version takes beside its tables.
      stamp: The stamp of the manifest, taken before the version was loaded.
      local_manifest: The part of the manifest that is on this machine; None: all of it.
      fingerprint: The crc32c of the manifest.
      shards: Reach what shards hold; None: the service is no router.
      parts: The parts of indexes that a shard holds, by index.
      changes: The sequence of the last change of its candidates and contexts; 0: it is as it
        was exported.
      lists: The lists of candidates by name.
      statements: What requests of one shape have in common, by shape; see
        `service.engine.validation.prepared`.
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
    local_manifest: Manifest | None = None
    fingerprint: int = 0
    shards: RemoteParts | None = None
    parts: Mapping[str, LoadedIndex] = field(default_factory=dict)
    changes: int = 0
    lists: Mapping[str, LoadedList] = field(default_factory=dict)
    statements: BoundedCache[Hashable, Any] = field(
        default_factory=lambda: BoundedCache(_STATEMENTS_MAX), repr=False
    )

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes that bound the cost of requests."""
        return Sizes(
            max([corpus.entry.size for corpus in self.corpora.values()], default=0),
            min([index.entry.dim for index in self.indexes.values()], default=1),
        )

    def ranking_inputs(self, tower: str, role: Role) -> tuple[str, ...]:
        """Returns the inputs of contexts or of candidates that a ranking tower of recommendations,
        and the stage before it, take.

        Args:
          tower: The name of the ranking tower.
          role: The role of the inputs.
        """
        inputs = dict.fromkeys(self.towers[tower].by_role[role])
        stage = self.manifest.stages.get(tower)
        if stage is not None:
            inputs |= dict.fromkeys(self.towers[stage.tower].by_role[role])
        return tuple(inputs)

    @property
    def files(self) -> Manifest:
        """The part of the manifest that is on this machine."""
        return self.local_manifest or self.manifest

    @property
    def denied(self) -> list[NDArray[Any]]:
        """The denied positions of every corpus: [d] uint32 of the bundle, then [d] uint32 of added
        candidates. New arrays once other candidates are denied.
        """
        positions: list[NDArray[Any]] = []
        for corpus in self.corpora.values():
            positions += [corpus.deny_list.positions, corpus.withdrawn.added]
        return positions

    def deny(self, ids: tuple[str, ...]) -> list[str]:
        """Denies the candidates that have one of these ids, in every corpus; replaces those denied
        before.

        Returns:
          Those that are no ids of any corpus, such as words where all have integers; none if the
          same ids were denied before.
        """
        if all(corpus.deny_list.ids == ids for corpus in self.corpora.values()):
            return []
        misfits = list(ids)
        for corpus in self.corpora.values():
            corpus.deny_list.replace(ids, corpus.store, corpus.entry.id_dtype)
            _, is_id = ids_among(misfits, corpus.entry.id_dtype)
            misfits = [text for text, fits in zip(misfits, is_id, strict=True) if not fits]
        return misfits

    def without_known(self, texts: Sequence[str]) -> list[str]:
        """Returns those of some ids, as texts, that no candidate of any corpus has."""
        unknown = list(texts)
        for corpus in self.corpora.values():
            unknown = corpus.without_known(unknown)
        return unknown


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None: there is no file. All files whose status cannot be read
    have the same stamp of zeros.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # whoever reads it reports why
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino
