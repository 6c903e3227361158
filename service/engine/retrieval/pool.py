"""The pool of a recommendation: the candidates of all its sources, each once, with their retrieval
scores.

In a pool, sources take turns: the first candidates of all sources, in the order of the request,
then the second ones, and so on. That is the order of what time does not suffice to rank. A
candidate of several sources counts as one of the first of them, in the order of the request.

The retrieval score of a candidate is its score in the first index, whichever source has it.

A source that fails, or that time does not suffice for, is left out, as long as another one is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowUnavailable
from bundle.features.columns import checked_offsets
from bundle.tables.offsets import lengths_of, offsets_of
from runtime.exact import normalized, scores_of_rows
from service.config import ServiceSettings
from service.engine import towers
from service.engine.calls import Columns, Explanation, RecommendationRequest, Vectors
from service.engine.execution import Execution
from service.engine.pace import MARGIN, Pace
from service.engine.retrieval import filters, retrieve, sharded_search
from service.engine.retrieval.search import Neighbors, Queries
from service.engine.retrieval.sources import PlannedSource, Sources
from service.errors import SHARD_FAILURES, DeadlineExceeded, RowNotFinite
from service.versions.version import LoadedList, ModelVersion, ServedIndex

Positions = NDArray[np.int64]

_FAILURES = (*SHARD_FAILURES, RowUnavailable, RowNotFinite)
"""What a source may fail with whatever the request."""


class Pool(NamedTuple):
    """The candidates of n contexts.

    Attributes:
      neighbors: The candidates, with their retrieval scores; explanations are of the first index.
      sources: [m] int32, the number of the source of each.
      reasons: Why sources are left out, a sentence each.
      has_vectors: Whether the vectors of all candidates can be read.
    """

    neighbors: Neighbors
    sources: NDArray[np.int32]
    reasons: tuple[str, ...] = ()
    has_vectors: bool = True

    def only(self, candidates: Positions) -> Pool:
        """Returns some of the candidates, by their ascending positions in the pool."""
        return self.select(candidates, candidates.searchsorted(self.neighbors.offsets))

    def select(self, candidates: Positions, offsets: NDArray[np.int64]) -> Pool:
        """Returns some of the candidates in another order.

        Args:
          candidates: [c] positions in the pool, those of one context after those of another.
          offsets: [n + 1], which of these belong to each context.
        """
        neighbors = self.neighbors._replace(
            positions=self.neighbors.positions[candidates],
            scores=self.neighbors.scores[candidates],
            offsets=offsets,
        )
        return self._replace(neighbors=neighbors, sources=self.sources[candidates])


class _SourceCandidates(NamedTuple):
    """The candidates of one source.

    Attributes:
      number: The number of the source.
      contexts: [c] int64, the context of each, ascending.
      positions: [c] int64; those of a context are distinct, best first.
      scores: [c] float32 in the first index; -inf: not known.
    """

    number: int
    contexts: NDArray[np.int64]
    positions: Positions
    scores: NDArray[np.float32]


class _Queries(NamedTuple):
    """What contexts search for in an index.

    Attributes:
      vectors: [n, dim] float32.
      negatives: The negative examples of each context; (): there are none.
    """

    vectors: Vectors
    negatives: Sequence[Positions]


@dataclass(frozen=True, eq=False)
class Retriever:
    """Retrieves the candidates of n contexts.

    Attributes:
      features: The columns of the contexts, complete.
      context_count: The number of contexts.
      k: The number of recommendations of each context.
    """

    model_version: ModelVersion
    sources: Sources
    request: RecommendationRequest
    features: Columns
    context_count: int
    k: int
    settings: ServiceSettings
    execution: Execution
    _vectors: dict[str, Vectors] = field(default_factory=dict)
    _queries: dict[str, _Queries] = field(default_factory=dict)
    _explanations: dict[int, Explanation] = field(default_factory=dict)
    _reasons: list[str] = field(default_factory=list)
    _problems: list[Exception] = field(default_factory=list)

    async def retrieve(self) -> Pool:
        """Returns the pool of all sources.

        Raises:
          ServiceError: All sources fail; the error is that of the first one.
        """
        planned = self.sources.planned
        # Where all sources are fallbacks, none of them waits for others.
        main = [source for source in planned if not source.entry.fallback] or [*planned]
        all_contexts = np.arange(self.context_count)
        parts = [await self._retrieve(source, all_contexts) for source in main]
        positions, sources, scores, offsets = _merge_sources(parts, self.context_count)

        fallback = [source for source in planned if source not in main]
        needed_count = self.k + (self.request.offset or 0)
        # Fallbacks are searched for contexts that need them alone: they may be expensive.
        short = (lengths_of(offsets) < needed_count).nonzero()[0]
        if fallback and short.size:
            parts += [await self._retrieve(source, short) for source in fallback]
            positions, sources, scores, offsets = _merge_sources(parts, self.context_count)
        if len(self._problems) == len(parts):
            raise self._problems[0]

        has_vectors = await self._complete(scores, positions, offsets)
        explanations: tuple[Explanation, ...] = ()
        if self.request.explain:
            not_searched = Explanation("none")
            numbers = range(self.context_count)
            explanations = tuple(
                [self._explanations.get(number, not_searched) for number in numbers]
            )
        neighbors = Neighbors(positions, scores, offsets, explanations)
        pool = Pool(neighbors, sources, tuple(self._reasons), has_vectors)
        # Sources may list candidates whose vectors cannot be searched.
        is_finite = np.isfinite(scores)
        if is_finite.all():
            return pool
        self.execution.leave_out("vector", self.sources.corpus.store.ids(positions[~is_finite]))
        return pool.only(is_finite.nonzero()[0])

    async def _retrieve(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the candidates of a source for some contexts; none if it is left out."""
        # A source that is alone cannot be left out: its failure is that of the request.
        if len(self.sources.planned) == 1:
            return await self._candidates(source, numbers)
        nothing = np.empty(0, np.int64)
        empty = _SourceCandidates(source.number, nothing, nothing, np.empty(0, np.float32))
        version = self.model_version
        kind = ("source", version.model, version.version, source.entry.magnitude)
        pace = Pace(self.execution, kind, int(numbers.size))
        left_s = self.execution.least_left_s
        expected_s = pace.expected_s
        if MARGIN * expected_s > left_s:
            pace.dropped()
            remained = f"{left_s * 1000:.0f} ms remained"
            late = DeadlineExceeded(f"{remained}, and it takes about {expected_s * 1000:.0f} ms")
            self._leave_out(source, late)
            return empty
        if math.isfinite(left_s):
            # The others are to be retrieved and ranked, however late shards are.
            self.execution.reserved_s = self.execution.left_s - left_s / MARGIN
        try:
            with pace.measured():
                return await self._candidates(source, numbers)
        except _FAILURES as problem:
            self._leave_out(source, problem)
            return empty
        finally:
            self.execution.reserved_s = 0.0

    def _leave_out(self, source: PlannedSource, problem: Exception) -> None:
        self.execution.check_alone()
        self._problems.append(problem)
        self._reasons.append(f"source {source.name!r} is left out: {problem}")
        reason = "failed"
        if isinstance(problem, DeadlineExceeded):
            reason = "late"
        self.execution.count("sources_left_out", 1, self.model_version.model, reason)

    async def _candidates(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        if source.index is not None:
            return await self._nearest(source, source.index, numbers)
        return self._list_candidates(source, numbers)

    async def _nearest(
        self, source: PlannedSource, index: ServedIndex, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the nearest candidates of an index."""
        request = self.request
        if self.sources.names:
            # Their pools have the sizes that the request states, and do not grow for crowding.
            pool_size = source.entry.pool_size or request.pool_size
            request = replace(request, pool_size=pool_size, crowding=None)
        vectors, negatives = await self._queries_in(index)
        # Computed for all contexts, of which a fallback may search for some.
        allowed = retrieve.allowed_candidates(
            index, request, self.context_count, self.execution, negatives
        )
        if numbers.size < self.context_count:
            vectors = vectors[numbers]
            excluded = [allowed.excluded[number] for number in numbers.tolist()]
            allowed = allowed._replace(excluded=excluded)
        neighbors = await retrieve.retrieve_pools(
            index, Queries(vectors, allowed), request, self.k, self.settings, self.execution
        )
        if index is self.sources.index and request.explain and not self._explanations:
            self._explanations.update(zip(numbers.tolist(), neighbors.explanations, strict=True))
        scores = neighbors.scores
        if index is not self.sources.index:
            scores = np.full(scores.size, -np.inf, np.float32)
        contexts = numbers.repeat(lengths_of(neighbors.offsets))
        return _SourceCandidates(
            source.number, contexts, neighbors.positions.astype(np.int64), scores
        )

    async def _queries_in(self, index: ServedIndex) -> _Queries:
        """Returns what the contexts search for in an index; computed once."""
        queries = self._queries.get(index.name)
        if queries is not None:
            return queries
        name = index.entry.query_tower
        if name not in self._vectors:
            tower = self.model_version.towers[name]
            self._vectors[name] = await towers.result(
                self.model_version, tower, self.features, self.context_count, self.execution
            )
        vectors, negatives = await retrieve.avoid_negatives(
            index, self._vectors[name], self.request, [], self.context_count, None, self.execution
        )
        # Several sources may search the same index, or indexes that share a query tower.
        queries = self._queries[index.name] = _Queries(vectors, negatives)
        return queries

    def _list_candidates(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the candidates of a source that lists them, those that the request permits."""
        count_max = source.entry.pool_size
        if source.candidates is not None:
            positions_by_context = self._positions_of_segments(source.candidates)
            count_max = count_max or self.request.retrieved_count
        else:
            positions_by_context = self._positions_of_ids(source)
        positions = np.concatenate([positions_by_context[number] for number in numbers.tolist()])
        sizes = [positions_by_context[number].size for number in numbers.tolist()]
        contexts = numbers.repeat(sizes)
        permitted = self._permitted_candidates(positions, contexts)
        permitted = permitted[_first_of_each(contexts[permitted], positions[permitted])]
        if count_max:
            ends = contexts[permitted].searchsorted(contexts[permitted])
            permitted = permitted[np.arange(permitted.size) - ends < count_max]
        unknown_scores = np.full(permitted.size, -np.inf, np.float32)
        return _SourceCandidates(
            source.number, contexts[permitted], positions[permitted], unknown_scores
        )

    def _positions_of_ids(self, source: PlannedSource) -> Sequence[Positions]:
        """Returns where the ids of each context are in the corpus; counts those that are not."""
        lists = source.entry.ids
        assert lists is not None  # noqa: S101 - else it is an index or a list
        where = f"sources[{source.number}]"
        positions_by_context = retrieve.positions_by_query(
            self.sources.corpus, lists, self.context_count, f"{where}.ids", f"{where}.offsets"
        )
        # Contexts that share one list share its array, whose ids are counted once.
        distinct_lists = {id(positions): positions for positions in positions_by_context}
        count = sum([positions.size for positions in distinct_lists.values()])
        unknown = int(lists.ids.size) - count
        model = self.model_version.model
        self.execution.count("not_found_ids", max(0, unknown), model, self.execution.call)
        return positions_by_context

    def _positions_of_segments(self, candidates: LoadedList) -> Sequence[Positions]:
        """Returns where the candidates of the segment of each context are in the corpus."""
        entry = candidates.entry
        segments = [entry.default] * self.context_count
        name = entry.by or ""
        column = self.features.get(name)
        if column is not None:
            offsets = checked_offsets(name, column, self.context_count)
            values = column.values.tolist()
            for number, (first, end) in enumerate(pairwise(offsets.tolist())):
                if end > first:
                    segments[number] = str(values[first])
        store = self.sources.corpus.store
        return [candidates.positions(store, segment) for segment in segments]

    def _permitted_candidates(
        self, positions: Positions, contexts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns which candidates of contexts no exclusion, deny list or filter leaves out."""
        self.execution.begin("search")
        request = self.request
        corpus = self.sources.corpus
        negatives: Sequence[Positions] = ()
        if request.negative_ids is not None:
            negatives = retrieve.positions_by_query(
                corpus, request.negative_ids, self.context_count, "negative_ids", "negative_offsets"
            )
        denied, excluded = retrieve.excluded_positions(
            corpus, request.exclude_ids, self.context_count, negatives
        )
        is_permitted = ~filters.is_among(positions, denied)
        for number, unwanted in enumerate(excluded):
            if unwanted.size:
                of_context = slice(*contexts.searchsorted([number, number + 1]))
                is_permitted[of_context] &= ~filters.is_among(positions[of_context], unwanted)
        if request.filter:
            # Contexts often share candidates: each is compared with the filter once.
            candidates, numbers = np.unique(positions, return_inverse=True)
            is_matching = filters.match_candidates(
                corpus, request.filter, candidates, self.execution.check
            )
            is_permitted &= is_matching[numbers]
        return is_permitted.nonzero()[0]

    async def _complete(
        self, scores: NDArray[np.float32], positions: Positions, offsets: NDArray[np.int64]
    ) -> bool:
        """Writes the retrieval scores that no search has given: 0 if no source is an index.

        Returns:
          Whether the vectors of these candidates could be read.
        """
        unknown = np.isneginf(scores).nonzero()[0]
        index = self.sources.index
        if index is None or not unknown.size:
            scores[unknown] = 0
            return True
        try:
            vectors = await sharded_search.vectors_at(index, positions[unknown], self.execution)
            queries, _ = await self._queries_in(index)
        except _FAILURES as problem:
            self.execution.check_alone()
            scores[unknown] = 0
            self._reasons.append(
                f"{unknown.size} of {scores.size} candidates have the retrieval score 0: {problem}"
            )
            return False
        # Exact scores, as a search would have given them.
        contexts = np.arange(self.context_count).repeat(lengths_of(offsets))[unknown]
        if index.entry.distance == "cosine":
            queries = normalized(queries)
        with np.errstate(over="ignore", invalid="ignore"):
            scores[unknown] = scores_of_rows(vectors, queries[contexts], index.entry.distance)
        return True


def _first_of_each(contexts: NDArray[np.int64], positions: Positions) -> NDArray[np.int64]:
    """Returns where candidates of contexts occur first, ascending."""
    _, firsts = np.unique((contexts << 32) | positions, return_index=True)
    return np.sort(firsts)


def _merge_sources(
    parts: Sequence[_SourceCandidates], contexts: int
) -> tuple[Positions, NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """Returns the candidates of all parts, each once: positions, sources, scores, and the [n + 1]
    offsets of each context's.
    """
    owners = np.concatenate([part.contexts for part in parts])
    positions = np.concatenate([part.positions for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    sources = np.repeat(
        np.array([part.number for part in parts], np.int32),
        [part.positions.size for part in parts],
    )
    if len(parts) == 1:
        return positions, sources, scores, owners.searchsorted(np.arange(contexts + 1))
    # Sources take turns, as the docstring of the module says.
    turns = [
        np.arange(part.contexts.size) - part.contexts.searchsorted(part.contexts) for part in parts
    ]
    order = np.lexsort((sources, np.concatenate(turns), owners))
    keys = (owners << 32) | positions
    _, firsts, numbers = np.unique(keys[order], return_index=True, return_inverse=True)
    first_sources = np.full(firsts.size, np.iinfo(np.int32).max, np.int32)
    np.minimum.at(first_sources, numbers, sources[order])
    # Sources that are no index know no score (-inf), so that the maximum is the known one.
    best_scores = np.full(firsts.size, -np.inf, np.float32)
    np.maximum.at(best_scores, numbers, scores[order])
    # `np.unique` has sorted by candidate: back to the order of the turns.
    in_turn = firsts.argsort()
    chosen = order[firsts[in_turn]]
    offsets = offsets_of(np.bincount(owners[chosen], minlength=contexts))
    return positions[chosen], first_sources[in_turn], best_scores[in_turn], offsets
