"""Retrieves the pool of a request: the candidates of all its sources, each once, with their
retrieval scores.

In a pool, sources take turns: the first candidates of all sources, in the order of the request,
then the second ones, and so on. That is the order of what time does not suffice to rank. A
candidate of several sources counts as one of the first of them, in the order of the request.

The retrieval score of a candidate is its score in the first index, whichever source has it.

A source that fails, or that time does not suffice for, is left out, as long as another one is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowUnavailable
from bundle.features.columns import checked_offsets
from bundle.tables.offsets import lengths_of, offsets_of
from runtime.exact import normalized, scores_of_rows
from runtime.vectors import find_unsearchable
from service.contract.limits import at_most
from service.contract.messages import Columns, Explanation, RetrievalRequest, Vectors
from service.engine import filters, towers
from service.engine.neighbors import Neighbors, Positions, Queries, SearchOptions
from service.engine.ranking.formulas import Scores
from service.engine.retrieval import queries, served_search
from service.engine.retrieval.pick import Pool, widen_pools
from service.engine.retrieval.plan import PlannedSource, Selection
from service.engine.retrieval.queries import QueryVectors
from service.engine.retrieval.rank import MARGIN, LatencyEstimate
from service.engine.validation import NotFinite
from service.errors import SHARD_FAILURES, DeadlineExceeded, RowNotFinite
from service.versions.version import LoadedList, ServedIndex

_FAILURES = (*SHARD_FAILURES, RowUnavailable, RowNotFinite)
"""What a source may fail with whatever the request."""


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
    scores: Scores


class Retriever:
    """Retrieves the candidates of n queries, or contexts.

    Attributes:
      selection: The request.
      features: The columns of the contexts, complete.
      query_vectors: The vectors of the queries in the only index; None: query towers compute them
        of the contexts.
    """

    def __init__(
        self, selection: Selection, features: Columns, query_vectors: QueryVectors | None = None
    ) -> None:
        """Stores the arguments; nothing is retrieved yet."""
        self.selection = selection
        self.features = features
        self.query_vectors = query_vectors
        self._request = selection.request
        self._corpus = selection.corpus
        self._execution = selection.execution
        self._n = selection.n
        self._vectors: dict[str, Vectors] = {}
        self._queries: dict[str, QueryVectors] = {}
        self._explanations: dict[int, Explanation] = {}
        self._reasons: list[str] = []
        self._problems: list[Exception] = []

    async def retrieve(self) -> Pool:
        """Returns the pool of all sources.

        Raises:
          ServiceError: All sources fail; the error is that of the first one.
        """
        planned = self.selection.sources
        only_index = planned[0].index
        if len(planned) == 1 and only_index is not None:
            # Nothing has to be merged, and all scores are known.
            neighbors = await self._nearest(planned[0], only_index, None)
            sources = np.zeros(neighbors.positions.size, np.int32)
            positions, scores, offsets, explanations = neighbors
            positions = positions.astype(np.int64, copy=False)
            return Pool(positions, offsets, sources, scores, scores, explanations)

        # Where all sources are fallbacks, none of them waits for others.
        main = [source for source in planned if not source.entry.fallback] or [*planned]
        n = self._n
        parts = [await self._retrieve(source, np.arange(n)) for source in main]
        positions, sources, scores, offsets = _merge_sources(parts, n)

        fallback = [source for source in planned if source not in main]
        # Fallbacks are searched for contexts that need them alone: they may be expensive.
        short = (lengths_of(offsets) < self.selection.end).nonzero()[0]
        if fallback and short.size:
            parts += [await self._retrieve(source, short) for source in fallback]
            positions, sources, scores, offsets = _merge_sources(parts, n)
        if len(self._problems) == len(parts):
            raise self._problems[0]

        has_vectors = await self._complete(scores, positions, offsets)
        not_searched = Explanation("none")
        explanations = tuple([self._explanations.get(number, not_searched) for number in range(n)])
        pool = Pool(
            positions,
            offsets,
            sources,
            scores,
            scores,
            explanations,
            has_vectors=has_vectors,
            reasons=tuple(self._reasons),
        )
        # Sources may list candidates whose vectors cannot be searched.
        is_finite = np.isfinite(scores)
        if is_finite.all():
            return pool
        self._execution.leave_out("vector", self._corpus.store.ids(positions[~is_finite]))
        return pool.only(is_finite.nonzero()[0])

    async def _retrieve(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the candidates of a source for some contexts; none if it is left out."""
        # A source that is alone cannot be left out: its failure is that of the request.
        if len(self.selection.sources) == 1:
            return await self._candidates(source, numbers)
        nothing = np.empty(0, np.int64)
        empty = _SourceCandidates(source.number, nothing, nothing, np.empty(0, np.float32))
        version = self.selection.model_version
        kind = ("source", version.model, version.version, source.entry.magnitude)
        estimate = LatencyEstimate(self._execution, kind, int(numbers.size))
        if late := estimate.late():
            self._leave_out(source, DeadlineExceeded(late))
            return empty
        left_s = self._execution.least_left_s
        if math.isfinite(left_s):
            # The others are to be retrieved and ranked, however late shards are.
            self._execution.reserved_s = self._execution.left_s - left_s / MARGIN
        try:
            with estimate.measured():
                return await self._candidates(source, numbers)
        except _FAILURES as problem:
            self._leave_out(source, problem)
            return empty
        finally:
            self._execution.reserved_s = 0.0

    def _leave_out(self, source: PlannedSource, problem: Exception) -> None:
        self._execution.check_alone()
        self._problems.append(problem)
        self._reasons.append(f"source {source.name!r} is left out: {problem}")
        reason = "failed"
        if isinstance(problem, DeadlineExceeded):
            reason = "late"
        self._execution.count("sources_left_out", 1, self.selection.model_version.model, reason)

    async def _candidates(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the candidates of a source for some contexts."""
        index = source.index
        if index is None:
            return self._list_candidates(source, numbers)
        neighbors = await self._nearest(source, index, numbers)
        scores = neighbors.scores
        if index is not self.selection.first_index:
            scores = np.full(scores.size, -np.inf, np.float32)
        elif not self._explanations:
            # Of shards there are explanations only if the request wants them.
            self._explanations.update(zip(numbers.tolist(), neighbors.explanations, strict=False))
        contexts = numbers.repeat(lengths_of(neighbors.offsets))
        positions = neighbors.positions.astype(np.int64)
        return _SourceCandidates(source.number, contexts, positions, scores)

    async def _nearest(
        self, source: PlannedSource, index: ServedIndex, numbers: NDArray[np.int64] | None
    ) -> Neighbors:
        """Returns the nearest candidates of an index, as many as a pool needs.

        Args:
          source: The source.
          index: The index of the source.
          numbers: The numbers of the contexts; None: all.
        """
        request = self._request
        n = self._n
        vectors, offsets, unwanted, not_found = await self._queries_in(index)
        # Computed for all contexts, of which a fallback may search for some.
        allowed = queries.allowed_candidates(index, request, n, self._execution, unwanted)
        if numbers is not None and numbers.size < n:
            vectors = vectors[numbers]
            excluded = [allowed.excluded[number] for number in numbers.tolist()]
            allowed = allowed._replace(excluded=excluded)
        searched = Queries(vectors, allowed, offsets)
        count = self.selection.k
        if self.selection.needs_pool:
            pool_size = source.entry.pool_size or request.retrieved_count
            # One at least is searched for, also where all candidates are deleted.
            count = max(1, min(pool_size, index.corpus.entry.size))
        if not_found is None:
            return await self._find_pools(index, searched, count)
        # Some ids of the request may not exist, and their queries have nothing to search for.
        searched, has_vector = queries.select_searchable(searched)
        neighbors = None
        if has_vector.any():
            neighbors = await self._find_pools(index, searched, count)
        return queries.spread(neighbors, has_vector)

    async def _find_pools(self, index: ServedIndex, searched: Queries, count: int) -> Neighbors:
        """Returns `count` candidates for each query, and more where crowding needs them; for pages
        no more, so that each page is of the same pool; nor for named sources, whose pools have the
        sizes that the request states.

        Raises:
          TooLarge: The pools have more than max_candidates.
        """
        request = self._request
        execution = self._execution
        if self.selection.needs_pool:
            pools_size = execution.largest(len(searched.allowed.excluded)) * count
            at_most(self.selection.settings, "max_candidates", pools_size, "request")
        # What was sent is checked already, unless it was moved away from negative examples.
        is_checked = request.holds_vectors and request.negative_ids is None
        if not is_checked and find_unsearchable(searched.vectors) is not None:
            raise NotFinite("a candidate's score")
        is_exact = isinstance(request, RetrievalRequest) and request.exact
        options = SearchOptions(count, is_exact, request.recall, request.explain, request.filter)
        neighbors = await served_search.nearest(index, searched, options, execution)
        if not request.crowding or request.offset is not None or self.selection.has_sources:
            return neighbors

        async def find(query: int, wider_count: int) -> Neighbors:
            wider = options._replace(k=wider_count)
            return await served_search.nearest(index, searched.only(query), wider, execution)

        return await widen_pools(
            neighbors, find, index.corpus, request.crowding, count, self.selection.k
        )

    async def _queries_in(self, index: ServedIndex) -> QueryVectors:
        """Returns what the queries search for in an index; computed once."""
        # Several sources may search the same index, or indexes that share a query tower.
        in_index = self._queries.get(index.name)
        if in_index is not None:
            return in_index
        in_index = self.query_vectors
        if in_index is None:
            name = index.entry.query_tower
            if name not in self._vectors:
                version = self.selection.model_version
                self._vectors[name] = await towers.result(
                    version, version.towers[name], self.features, self._n, self._execution
                )
            in_index = QueryVectors(self._vectors[name])
        if self._request.negative_ids is not None:
            in_index = await queries.avoid_negatives(
                index, self._request, in_index, self._n, self._execution
            )
        self._queries[index.name] = in_index
        return in_index

    def _list_candidates(
        self, source: PlannedSource, numbers: NDArray[np.int64]
    ) -> _SourceCandidates:
        """Returns the candidates of a source that lists them, those that the request permits."""
        count_max = source.entry.pool_size
        if source.candidates is not None:
            positions_by_context = self._positions_of_segments(source.candidates)
            count_max = count_max or self._request.retrieved_count
        else:
            positions_by_context = self._positions_of_ids(source)
        positions = np.concatenate([positions_by_context[number] for number in numbers.tolist()])
        sizes = [positions_by_context[number].size for number in numbers.tolist()]
        contexts = numbers.repeat(sizes)
        permitted = self._permitted_candidates(positions, contexts)
        # A list may name a candidate several times: the first time counts.
        keys = (contexts[permitted] << 32) | positions[permitted]
        _, firsts = np.unique(keys, return_index=True)
        permitted = permitted[np.sort(firsts)]
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
        positions_by_context = queries.positions_by_query(
            self._corpus, lists, self._n, f"{where}.ids", f"{where}.offsets"
        )
        # Contexts that share one list share its array, whose ids are counted once.
        distinct_lists = {id(positions): positions for positions in positions_by_context}
        count = sum([positions.size for positions in distinct_lists.values()])
        unknown = int(lists.ids.size) - count
        model = self.selection.model_version.model
        self._execution.count("not_found_ids", max(0, unknown), model, self._execution.call)
        return positions_by_context

    def _positions_of_segments(self, candidates: LoadedList) -> Sequence[Positions]:
        """Returns where the candidates of the segment of each context are in the self._corpus."""
        entry = candidates.entry
        segments = [entry.default] * self._n
        name = entry.by or ""
        column = self.features.get(name)
        if column is not None:
            offsets = checked_offsets(name, column, self._n)
            values = column.values.tolist()
            for number, (first, end) in enumerate(pairwise(offsets.tolist())):
                if end > first:
                    segments[number] = str(values[first])
        store = self._corpus.store
        return [candidates.positions(store, segment) for segment in segments]

    def _permitted_candidates(
        self, positions: Positions, contexts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns which candidates of contexts no exclusion, deny list or filter leaves out."""
        self._execution.begin("search")
        request = self._request
        corpus = self._corpus
        negatives: Sequence[Positions] = ()
        if request.negative_ids is not None:
            negatives = queries.positions_by_query(
                corpus, request.negative_ids, self._n, "negative_ids", "negative_offsets"
            )
        denied, excluded = queries.excluded_positions(
            corpus, request.exclude_ids, self._n, negatives
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
                corpus, request.filter, candidates, self._execution.check
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
        index = self.selection.first_index
        if index is None or not unknown.size:
            scores[unknown] = 0
            return True
        try:
            vectors = await served_search.vectors_at(index, positions[unknown], self._execution)
            in_index = await self._queries_in(index)
        except _FAILURES as problem:
            self._execution.check_alone()
            scores[unknown] = 0
            self._reasons.append(
                f"{unknown.size} of {scores.size} candidates have the retrieval score 0: {problem}"
            )
            return False
        # Exact scores, as a search would have given them.
        contexts = np.arange(self._n).repeat(lengths_of(offsets))[unknown]
        query_vectors = in_index.vectors
        if index.entry.distance == "cosine":
            query_vectors = normalized(query_vectors)
        with np.errstate(over="ignore", invalid="ignore"):
            scores[unknown] = scores_of_rows(vectors, query_vectors[contexts], index.entry.distance)
        return True


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
