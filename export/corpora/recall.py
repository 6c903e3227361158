"""Measures the recall of an index against exact search. Some queries choose the setting of the
index, and others judge it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import wilson_interval
from bundle.format.indexes import CurvePoint, Engine, RecallCurve
from bundle.format.manifest import Distance, Index, Recall
from export.errors import DestinationError, NotConvertible, VerificationFailed
from export.recipe.schema import IndexSection
from runtime.candidate_index import CandidateIndex
from runtime.errors import IndexUnreadable, InvalidInput
from runtime.exact import ExactIndex, normalized
from runtime.partitions import load_index
from runtime.vectors import VectorFile, is_searchable

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Setting = dict[str, int]
"""The parameters of a search, leaves_to_search and reorder; {} for a brute-force index."""

_EXACT_TIMED = 16
"""The maximum number of exact searches that are timed."""
_EXACT_TIMED_BLOCKS = 4
"""The maximum number of blocks of vectors that a timed exact search reads."""
_TIE = 1e-6
"""The share of a score within which float32 does not distinguish close neighbors."""
_NEARLY_ALL = 0.9995
"""The recall from which on no more leaves are tried."""
_LESS_MISSED = 0.9
"""The share of the neighbors missed that a deeper setting may miss at most to be kept."""


@dataclass(frozen=True)
class QuerySplit:
    """The queries that choose a setting, and those that judge it.

    A setting that was chosen on some queries looks better on these than on others, because it suits
    them by chance. So every second query chooses, and the others judge. Where there is nothing to
    choose, all queries judge.

    Attributes:
      choosing: [c] rows of the queries that choose.
      judging: [j] rows of the queries that judge: not those of `choosing`, unless `chosen_on` is 0.
      chosen_on: The number of queries that choose, as the manifest has it: c, or 0 where nothing
        is chosen.
    """

    choosing: Positions
    judging: Positions
    chosen_on: int

    @classmethod
    def of(cls, rows: Positions, has_choice: bool) -> QuerySplit:
        """Divides rows, the same way in every run; a single one chooses and judges."""
        if not has_choice or rows.size < 2:
            return cls(rows, rows, 0)
        choosing = rows[::2]
        return cls(choosing, rows[1::2], choosing.size)


def sample_rows(count: int, sample_size: int) -> Positions:
    """Returns up to `sample_size` of `count` rows, evenly spread."""
    rows = np.linspace(0, count - 1, min(sample_size, count)).round().astype(np.int64)
    return np.unique(rows)


@dataclass(frozen=True)
class Measured:
    """Searches of an index, compared with exact search.

    Attributes:
      shares: [n] float64, the share of its nearest k that each query found.
      search_s: The median time of a search in seconds.
    """

    shares: NDArray[np.float64]
    search_s: float

    @property
    def recall(self) -> float:
        """The mean share over all queries."""
        return float(self.shares.mean())

    def of(self, queries: Positions) -> Measured:
        """Returns the measurement of some of the queries."""
        return replace(self, shares=self.shares[queries])


class ExactNeighbors:
    """The true neighbors of some queries, which searches of an index are compared with.

    Attributes:
      queries: [n, dim] float32, the queries.
      k: The number of neighbors of each query.
    """

    def __init__(
        self,
        vectors: VectorFile,
        distance: Distance,
        k: int,
        queries: Vectors,
        k_max: int = 0,
    ) -> None:
        """Searches for the neighbors.

        Args:
          vectors: The vectors that are searched.
          distance: The distance of the index.
          k: The number of neighbors that `measure` compares.
          queries: [n, dim] float32, the queries.
          k_max: The maximum number of neighbors that `are_near` can compare; 0: k.

        Raises:
          InvalidInput: A query or a vector holds NaN or infinities.
        """
        self._vectors = vectors
        self._distance = distance
        self.k = min(k, len(vectors))
        self.queries = np.ascontiguousarray(queries, np.float32)
        # One search serves all k that are measured later. One neighbor more than the largest takes
        # shows whether others are as near as the last one.
        deepest = min(max(k, k_max) + 1, len(vectors))
        nearest, _ = ExactIndex(vectors, distance).search(self.queries, deepest)
        self._nearest = nearest
        # The score that a right neighbor reaches, for each k: that of the k-th nearest.
        self._scores_to_reach = [
            # Exact search ranks by float32, so that scores of close neighbors may not descend here.
            np.minimum.accumulate(self._scores(row, query))
            for row, query in zip(nearest, self.queries, strict=True)
        ]

    def measure(
        self, index: CandidateIndex, setting: Setting, sent_queries: Vectors | None = None
    ) -> Measured:
        """Searches an index for the queries.

        A neighbor counts as right if its exact score reaches that of the true k-th one, less 1e-6
        of it: among equals any is as good, and float32 does not distinguish closer ones.

        Args:
          index: The index.
          setting: The parameters of the searches; {}: those that the index was written with.
          sent_queries: [n, dim] float32, the vectors that are sent in place of the queries; None:
            the queries themselves.
        """
        searched_queries = self.queries
        if sent_queries is not None:
            searched_queries = np.ascontiguousarray(sent_queries, np.float32)
        shares = []
        times = []
        for number, searched_query in enumerate(searched_queries):
            # One query at a time: the times are those of single searches.
            began = time.perf_counter()
            neighbors, _ = index.search(searched_query[np.newaxis], self.k, **setting)
            times.append(time.perf_counter() - began)

            # -1 stands for neighbors that were not found. One that is found twice counts once.
            positions = np.unique(neighbors[0][neighbors[0] >= 0])
            is_right = self.are_near(number, positions, [self.k])
            shares.append(np.count_nonzero(is_right) / self.k)
        return Measured(np.array(shares), float(np.median(times)))

    def searchable(self, query: Vectors) -> Vectors:
        """Returns a query as `CandidateIndex.candidates` takes it."""
        if self._distance != "cosine":
            return query
        (unit,) = normalized(query[np.newaxis])
        return np.asarray(unit, np.float32)

    def are_near(
        self, number: int, positions: NDArray[Any], ks: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Returns which positions are among the k nearest of a query, as `measure` counts them.

        Args:
          number: The number of the query.
          positions: [m], distinct.
          ks: The numbers of neighbors, each at most `k_max`.

        Returns:
          [len(ks), m] bool.
        """
        nearest = self._nearest[number]
        reached = self._scores_to_reach[number]
        order = nearest.argsort()
        places = np.minimum(nearest[order].searchsorted(positions), nearest.size - 1)
        ranks = order[places]
        is_ranked = nearest[ranks] == positions
        near = []
        for k in ks:
            score_to_reach = reached[k - 1]
            lowest = score_to_reach - _TIE * abs(score_to_reach)
            near_count = np.count_nonzero(reached >= lowest)
            is_near = is_ranked & (ranks < near_count)
            if near_count == nearest.size < len(self._vectors):
                # Further candidates may be as near as the last one that is known.
                (others,) = (~is_ranked).nonzero()
                scores = self._scores(positions[others].astype(np.int64), self.queries[number])
                is_near[others] = scores >= lowest
            near.append(is_near)
        return np.stack(near)

    def search_s(self) -> float:
        """Returns the median time of one exact search in seconds.

        It grows with the number of vectors, so it is taken over as many as may be in memory and
        fill no cache.
        """
        timed = self._vectors[: _EXACT_TIMED_BLOCKS * self._vectors.block_rows]
        exact = ExactIndex(timed, self._distance)
        times = []
        for query in self.queries[:_EXACT_TIMED]:
            began = time.perf_counter()
            exact.search(query[np.newaxis], self.k)
            times.append(time.perf_counter() - began)
        return float(np.median(times)) * len(self._vectors) / len(timed)

    def _scores(self, positions: Positions, query: Vectors) -> NDArray[np.float64]:
        # In float64, row by row: equal vectors get equal scores, whichever rows come with them.
        rows = self._vectors[positions]
        if self._distance == "cosine":
            rows = normalized(rows)
            query = normalized(query[np.newaxis])[0]
        wide = rows.astype(np.float64)
        wide_query = query.astype(np.float64)
        scores: NDArray[np.float64]
        if self._distance == "squared_l2":
            scores = -np.square(wide - wide_query).sum(axis=1)
        else:
            scores = np.einsum("ij,j->i", wide, wide_query)
        return scores


def recall_of_tables(
    base: Path,
    name: str,
    section: IndexSection,
    written: Index,
    served_queries: Vectors,
    trained: Vectors,
    path: Path,
) -> Recall:
    """Measures a written index against exact search over vectors that are computed from the rows of
    the checkpoint, on the queries that the recall of the index was measured on.

    Args:
      base: Directory of the bundle that is being written.
      name: The name of the index.
      section: The section of the recipe.
      written: The index's entry in the manifest.
      served_queries: [q, dim] float32, the queries of the service, computed from converted rows.
      trained: [q, dim] float32, the same queries, computed from the rows of the checkpoint.
      path: The file of the candidates' vectors, computed from the rows of the checkpoint.

    Raises:
      VerificationFailed: The recall is less than `section.recall.of_tables`.
    """
    recall = measure_again(base, name, written, served_queries, trained, path)
    target = section.recall.of_tables
    if target is not None and recall.value < target:
        raise VerificationFailed(
            f"index {name!r}: recall@{recall.k} is {recall.value:.4f} against exact search over "
            "vectors made of the checkpoint's own rows, the recipe requires "
            f"{target}; lower indexes.{name}.recall.of_tables, or give the tables a dtype that "
            "loses less"
        )
    return recall.model_copy(update={"target": target or 0.0})


def recall_of_cold_users(
    base: Path, name: str, section: IndexSection, written: Index, queries: Vectors, rows: Positions
) -> Recall | None:
    """Measures a written index on the queries of users whose bags are empty.

    Args:
      base: Directory of the bundle that is being written.
      name: The name of the index.
      section: The section of the recipe.
      written: The index's entry in the manifest.
      queries: [q, dim] float32, the queries of the examples with empty bags.
      rows: The rows of the queries to measure.

    Returns:
      The recall; None if the vector of such a user cannot be searched.

    Raises:
      VerificationFailed: The recall is less than `section.recall.of_cold_users`, or cannot be
        measured though the recipe limits it.
    """
    limit = section.recall.of_cold_users
    # Users that differ in nothing but their bags are the same query.
    cold = np.unique(queries[rows], axis=0)
    if not is_searchable(cold).all():
        if limit is not None:
            raise VerificationFailed(
                f"index {name!r}: the query of a user with empty bags is not finite, or too long, "
                f"so its recall cannot be measured, the recipe requires {limit}; give empty bags a "
                f"finite vector in tower {section.query_tower!r}, or leave out "
                f"indexes.{name}.recall.of_cold_users"
            )
        return None
    vectors = open_vectors(base / written.vectors, name, cold)
    stated = written.recall
    exact = ExactNeighbors(vectors, written.distance, stated.k, cold)
    directories = [base / directory for directory in written.directories]
    index = load_written(written.engine, directories, written.distance, vectors, name)
    measured = exact.measure(index, {})
    if limit is not None and measured.recall < limit:
        raise VerificationFailed(
            f"index {name!r}: recall@{stated.k} is {measured.recall:.4f} for users with empty bags "
            f"({len(cold)} queries), the recipe requires {limit}; raise "
            f"indexes.{name}.recall.value or parameters.leaves_to_search, lower "
            f"indexes.{name}.recall.of_cold_users, or set kind = 'brute_force'"
        )
    target = stated.target
    if limit is not None:
        target = limit
    # No setting was chosen on these queries (0).
    return recall_entry(measured, stated.k, target, 0, stated.representative)


def note_of_cold_users(name: str, written: Index) -> str:
    """Returns a note on the recall of users whose bags are empty; "" if it reaches the recall that
    the recipe requires.

    Args:
      name: The name of the index.
      written: The index's entry in the manifest, of a query tower with bags.
    """
    cold = written.recall_of_cold_users
    if cold is None:
        return (
            f"index {name!r}: the query of a user with empty bags is not finite, so the service "
            "rejects such users"
        )
    promised = written.recall.target
    if cold.value >= promised:
        return ""
    return (
        f"index {name!r}: recall@{cold.k} is {cold.value:.4f} for users with empty bags (users who "
        f"have done nothing yet), less than the {promised} that the recipe requires on all "
        f"examples; send recall or exact with their requests, raise indexes.{name}.recall.value, "
        f"or set indexes.{name}.recall.of_cold_users to reject such an index"
    )


def measure_again(
    base: Path, name: str, written: Index, served_queries: Vectors, queries: Vectors, path: Path
) -> Recall:
    """Measures the recall of a written index on the queries that its recall was measured on.

    Args:
      base: Directory of the bundle.
      name: The name of the index.
      written: The index's entry in the manifest.
      served_queries: [q, dim] float32, the queries that the index is searched for.
      queries: [q, dim] float32, the queries that exact search takes.
      path: The file of the vectors that exact search reads.
    """
    vectors = open_vectors(path, name, queries)
    before = written.recall
    # Both numbers give the same sample as in the export, and the same halves of it.
    rows = sample_rows(len(queries), before.queries + before.chosen_on)
    split = QuerySplit.of(rows, has_choice=before.chosen_on > 0)
    exact = ExactNeighbors(vectors, written.distance, before.k, queries[split.judging])

    directories = [base / directory for directory in written.directories]
    index = load_written(written.engine, directories, written.distance, vectors, name)
    measured = exact.measure(index, {}, sent_queries=served_queries[split.judging])
    return recall_entry(measured, before.k, before.target, split.chosen_on, before.representative)


def shares_by_depth(
    index: CandidateIndex,
    exact: ExactNeighbors,
    leaves: Sequence[int],
    pools: Sequence[int],
    ks: Sequence[int],
) -> NDArray[np.float32]:
    """Returns the shares of their true neighbors that queries find, by the depth of the search.

    Args:
      index: The index, a tree.
      exact: The true neighbors of n queries.
      leaves: The l numbers of leaves to search, ascending.
      pools: The p numbers of candidates to reorder, ascending.
      ks: The numbers of neighbors, each at most the `k_max` of the true ones.

    Returns:
      [l, p, k, n]. Numbers of leaves are left out once the one before finds nearly all: fewer than
      l may come.
    """
    shares = []
    for count in leaves:
        level = np.empty((len(pools), len(ks), len(exact.queries)), np.float32)
        for number, query in enumerate(exact.queries):
            # A smaller pool is the beginning of the largest one, so that one search tells of all.
            fetched = index.candidates(exact.searchable(query), pools[-1], count)
            # How many are found among the first of them; leaves may hold no candidate at all.
            found = np.zeros((len(ks), fetched.size + 1), np.int64)
            exact.are_near(number, fetched, ks).cumsum(axis=1, out=found[:, 1:])
            ends = np.minimum(pools, fetched.size)
            level[:, :, number] = np.minimum(found[:, ends].T, ks) / ks
        shares.append(level)
        if level[-1].mean(axis=1).min() >= _NEARLY_ALL:
            break
    return np.stack(shares)


def curve_of(
    k: int,
    shares: NDArray[np.float32],
    leaves: Sequence[int],
    pools: Sequence[int],
    cost: Callable[[int, int], float],
) -> RecallCurve:
    """Returns the depths that pay, of all that were measured for a k.

    Args:
      k: The number of neighbors.
      shares: [l, p, n], of `shares_by_depth`.
      leaves: The l numbers of leaves, or more.
      pools: The p numbers of candidates to reorder.
      cost: Returns the cost of a search, by its leaves and its pool.
    """
    points = []
    for level, count in zip(shares, leaves, strict=False):
        for of_pool, pool in zip(level, pools, strict=True):
            recall = float(of_pool.mean())
            low = mean_low(of_pool, k)
            points.append(CurvePoint(leaves_to_search=count, reorder=pool, recall=recall, low=low))
    points.sort(key=lambda point: cost(point.leaves_to_search, point.reorder))
    paying: list[CurvePoint] = []
    for point in points:
        missed = 1 - paying[-1].low if paying else 2.0
        if 1 - point.low < missed * _LESS_MISSED:
            paying.append(point)
    return RecallCurve(k=k, points=tuple(paying))


def mean_low(shares: NDArray[np.floating[Any]], k: int) -> float:
    """Returns the lower end of the 95 % interval of the mean of shares.

    It is that of Wilson for as many independent neighbors as would vary as much: as many as there
    are queries, where a query finds all of its neighbors or none, and k times as many, where
    neighbors are found or missed by themselves.

    Args:
      shares: [n], of k neighbors each.
      k: The number of neighbors.
    """
    mean = float(shares.mean())
    variance = float(shares.var())
    most = shares.size * k
    independent = float(most)
    if variance:
        independent = min(most, max(shares.size, mean * (1 - mean) / variance * shares.size))
    return wilson_interval(mean, independent)[0]


def recall_entry(
    measured: Measured, k: int, target: float, chosen_on: int, representative: bool
) -> Recall:
    """Returns the entry of a measurement in the manifest."""
    queries = measured.shares.size
    # The neighbors of one query are found or missed together, so queries are counted, not
    # neighbors: the interval is never too narrow.
    low, _ = wilson_interval(measured.recall, queries)
    return Recall(
        k=k,
        value=measured.recall,
        low=low,
        queries=queries,
        chosen_on=chosen_on,
        target=target,
        representative=representative,
    )


def open_vectors(path: Path, name: str, queries: Vectors) -> VectorFile:
    """Opens the vectors of an index, which must have the dim of its queries.

    Raises:
      NotConvertible: The dims differ, or there are no vectors or no queries.
    """
    if queries.ndim != 2 or not len(queries):
        raise NotConvertible(
            f"index {name!r}: queries have shape {list(queries.shape)}; [q, dim] was expected, q "
            ">= 1"
        )
    try:
        vectors = VectorFile(path, queries.shape[1])
    except OSError as problem:
        raise NotConvertible(f"index {name!r}: vectors cannot be read: {problem}") from problem
    except InvalidInput as problem:
        raise NotConvertible(
            f"index {name!r}: {problem}, which queries have; both towers must end in the same dim"
        ) from problem
    if not len(vectors):
        raise NotConvertible(f"index {name!r}: vectors cannot be read: {path.name} is empty")
    return vectors


def load_written(
    engine: Engine, directories: Sequence[Path], distance: Distance, vectors: VectorFile, name: str
) -> CandidateIndex:
    """Loads an index as it was written.

    Raises:
      DestinationError: A file of the index is damaged.
    """
    try:
        return load_index(engine, directories, distance, vectors.mapped)
    except IndexUnreadable as problem:
        raise DestinationError(
            f"index {name!r} was not written whole: {problem}; is the disk full?"
        ) from problem
