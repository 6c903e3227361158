"""Recall of an index against exact search, on queries of which some choose its setting and others
judge it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Distance, Index, Recall
from export.errors import DestinationError, NotConvertible, VerificationFailed
from export.recipe.schema import IndexSection
from runtime.errors import IndexUnreadable, InvalidInput
from runtime.exact import ExactIndex, normalized
from runtime.partitions import load_index
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]
Setting = dict[str, int]
"""What one search costs by: leaves_to_search and reorder; nothing of a brute force index."""

_EXACT_TIMED = 16
_EXACT_TIMED_BLOCKS = 4
_TIE = 1e-6
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class QuerySplit:
    """Which queries choose a setting, and which judge it.

    A setting that was chosen on some queries looks better on these than on others, because it suits
    them by chance. So every second query chooses, and the others judge. Where there is nothing to
    choose, all queries judge.

    Attributes:
      choosing: [c] rows of the queries.
      judging: [j] rows. They are others than those of `choosing` unless `chosen_on` is 0.
      chosen_on: As in the manifest: c, or 0 where nothing is chosen.
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


def sample_rows(count: int, wanted: int) -> Positions:
    """Returns up to `wanted` of `count` rows, evenly spread."""
    rows = np.linspace(0, count - 1, min(wanted, count)).round().astype(np.int64)
    return np.unique(rows)


@dataclass(frozen=True)
class Measured:
    """Searches of an index, compared with exact search.

    Attributes:
      shares: [n] share of the nearest k that each query found.
      search_s: Median time of a search in seconds.
    """

    shares: NDArray[np.float64]
    search_s: float

    @property
    def recall(self) -> float:
        """Mean share over all queries."""
        return float(self.shares.mean())

    def of(self, queries: Positions) -> Measured:
        """Returns what was found for some of the queries."""
        return replace(self, shares=self.shares[queries])


class ExactNeighbors:
    """The true neighbors of some queries, which searches of an index are compared with.

    Attributes:
      queries: [n, dim] float32.
      k: Number of neighbors of each query.
    """

    def __init__(
        self,
        vectors: VectorFile,
        distance: Distance,
        k: int,
        queries: Vectors,
        k_max: int = 0,
    ) -> None:
        """Searches for them.

        Args:
          vectors: What is searched.
          distance: The distance of the index.
          k: Neighbors that `measure` compares unless it is told another number.
          queries: [n, dim].
          k_max: Most neighbors that `measure` may be told; 0: k.
        Raises:
          InvalidInput: A query or a vector holds NaN or infinities.
        """
        self._vectors = vectors
        self._distance = distance
        self.k = min(k, len(vectors))
        self.queries = np.ascontiguousarray(queries, np.float32)
        # One search serves all k that are measured later.
        deepest = min(max(k, k_max), len(vectors))
        nearest, _ = ExactIndex(vectors, distance).search(self.queries, deepest)
        # What a right neighbor reaches, for each k: the score of the k-th one.
        self._reached = [
            # Exact search ranks by float32, so that scores of close neighbors may not descend here.
            np.minimum.accumulate(self._scores(row, query))
            for row, query in zip(nearest, self.queries, strict=True)
        ]

    def measure(
        self,
        index: ScannIndex,
        setting: Setting,
        sent_queries: Vectors | None = None,
        k: int = 0,
    ) -> Measured:
        """Searches an index for the queries.

        A neighbor counts as right if its exact score reaches that of the true k-th one, less 1e-6
        of it: among equals any is as good, and float32 cannot tell closer ones apart.

        Args:
          index: What is searched.
          setting: Of the searches; {}: as written.
          sent_queries: [n, dim] float32, what is sent in place of each query; None: the queries.
          k: Neighbors to compare; 0: the usual number.
        """
        k = min(k or self.k, len(self._vectors))
        queries = self.queries
        if sent_queries is not None:
            queries = np.ascontiguousarray(sent_queries, np.float32)
        shares = []
        times = []
        for query, reached, vector in zip(self.queries, self._reached, queries, strict=True):
            # One query at a time: the times are those of single searches.
            began = time.perf_counter()
            neighbors, _ = index.search(vector[np.newaxis], k, **setting)
            times.append(time.perf_counter() - began)

            worst = reached[k - 1]
            # -1 stands for neighbors that were not found. One that is found twice counts once.
            positions = np.unique(neighbors[0][neighbors[0] >= 0])
            right = self._scores(positions, query) >= worst - _TIE * abs(worst)
            shares.append(np.count_nonzero(right) / k)
        return Measured(np.array(shares), float(np.median(times)))

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
        # In float64, row by row: equal vectors get equal scores whatever stands beside them.
        rows = self._vectors[positions]
        if self._distance == "cosine":
            rows = normalized(rows)
            query = normalized(query[np.newaxis])[0]
        wide = rows.astype(np.float64)
        true_query = query.astype(np.float64)
        scores: NDArray[np.float64] = np.einsum("ij,j->i", wide, true_query)
        return (
            -np.square(wide - true_query).sum(axis=1) if self._distance == "squared_l2" else scores
        )


def recall_of_tables(
    base: Path,
    name: str,
    part: IndexSection,
    written: Index,
    served_queries: Vectors,
    trained: Vectors,
    path: Path,
) -> Recall:
    """Measures a written index against exact search over what the checkpoint's own rows would have
    given, on the queries that its recall was measured on.

    Args:
      base: Directory of the bundle that is being written.
      name: The name of the index.
      part: What the recipe says of it.
      written: The index's entry in the manifest.
      served_queries: [q, dim] queries as the service will send them, made of converted rows.
      trained: [q, dim] the same queries, made of the checkpoint's own rows.
      path: The file of the candidates' vectors, made of the checkpoint's own rows.
    Raises:
      VerificationFailed: It is less than `part.recall.of_tables`.
    """
    recall = measure_again(base, name, written, served_queries, trained, path)
    target = part.recall.of_tables
    if target is not None and recall.value < target:
        raise VerificationFailed(
            f"index {name!r}: recall@{recall.k} is {recall.value:.4f} against exact search over "
            "vectors made of the checkpoint's own rows, the recipe requires "
            f"{target}; lower indexes.{name}.recall.of_tables, or give the tables a dtype that "
            "loses less"
        )
    return recall.model_copy(update={"target": target or 0.0})


def recall_of_cold_users(
    base: Path, name: str, part: IndexSection, written: Index, queries: Vectors, rows: Positions
) -> Recall | None:
    """Measures a written index on the queries of users whose bags are empty.

    Args:
      base: Directory of the bundle that is being written.
      name: The name of the index.
      part: What the recipe says of it.
      written: The index's entry in the manifest.
      queries: [q, dim] queries of the examples, with empty bags. rows: The rows to measure.

    Returns:
      None: the vector of such a user is NaN or infinite.

    Raises:
      VerificationFailed: The recall is less than `part.recall.of_cold_users`, or cannot be
        measured though the recipe limits it.
    """
    limit = part.recall.of_cold_users
    # Users that differ in nothing but their bags are the same query.
    cold = np.unique(queries[rows], axis=0)
    if not np.isfinite(cold).all():
        if limit is not None:
            raise VerificationFailed(
                f"index {name!r}: the query of a user with empty bags is not finite, so its recall "
                f"cannot be measured, the recipe requires {limit}; give empty bags a finite vector "
                f"in tower {part.query_tower!r}, or leave out indexes.{name}.recall.of_cold_users"
            )
        return None
    vectors = open_vectors(base / written.vectors, name, cold)
    wanted = written.recall
    exact = ExactNeighbors(vectors, written.distance, wanted.k, cold)
    directories = [base / directory for directory in written.directories]
    index = load_written(directories, written.distance, vectors, name)
    measured = exact.measure(index, {})
    if limit is not None and measured.recall < limit:
        raise VerificationFailed(
            f"index {name!r}: recall@{wanted.k} is {measured.recall:.4f} for users with empty bags "
            f"({len(cold)} queries), the recipe requires {limit}; raise "
            f"indexes.{name}.recall.value or parameters.leaves_to_search, lower "
            f"indexes.{name}.recall.of_cold_users, or set kind = 'brute_force'"
        )
    target = wanted.target if limit is None else limit
    # No setting was chosen on these queries (0).
    return recall_entry(measured, wanted.k, target, 0, wanted.representative)


def note_of_cold_users(name: str, written: Index) -> str:
    """Returns what an operator must know of the recall of users whose bags are empty; empty:
    nothing, since it reaches that of the recipe.

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
      served_queries: [q, dim] what is sent to the index for each query.
      queries: [q, dim] what exact search gets.
      path: The file of the vectors that exact search gets.
    """
    vectors = open_vectors(path, name, queries)
    before = written.recall
    # Both numbers give the same sample as in the export, and the same halves of it.
    rows = sample_rows(len(queries), before.queries + before.chosen_on)
    split = QuerySplit.of(rows, has_choice=before.chosen_on > 0)
    exact = ExactNeighbors(vectors, written.distance, before.k, queries[split.judging])

    directories = [base / directory for directory in written.directories]
    index = load_written(directories, written.distance, vectors, name)
    measured = exact.measure(index, {}, sent_queries=served_queries[split.judging])
    return recall_entry(measured, before.k, before.target, split.chosen_on, before.representative)


def recall_entry(
    measured: Measured, k: int, target: float, chosen_on: int, representative: bool
) -> Recall:
    """Returns what the manifest says of a measurement."""
    queries = measured.shares.size
    return Recall(
        k=k,
        value=measured.recall,
        low=wilson_low(measured.recall, queries),
        queries=queries,
        chosen_on=chosen_on,
        target=target,
        representative=representative,
    )


def wilson_low(share: float, queries: int) -> float:
    """Returns the lower end of the 95 % Wilson interval of a share.

    The neighbors of one query are found or missed together, so queries are counted, not neighbors:
    the interval is never too narrow. Source: Wilson, JASA 22 (1927), p. 209.
    """
    square = _Z95 * _Z95
    middle = share + square / (2 * queries)
    variance = share * (1 - share) / queries + square / (4 * queries * queries)
    spread = _Z95 * math.sqrt(variance)
    return max(0.0, (middle - spread) / (1 + square / queries))


def open_vectors(path: Path, name: str, queries: Vectors) -> VectorFile:
    """Opens the vectors of an index, which must have the dim of its queries.

    Raises:
      NotConvertible: They have not, or there is none.
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
    directories: Sequence[Path], distance: Distance, vectors: VectorFile, name: str
) -> ScannIndex:
    """Loads an index as it was written.

    Raises:
      DestinationError: It was not written whole.
    """
    try:
        return load_index(directories, distance, vectors.mapped)
    except IndexUnreadable as problem:
        raise DestinationError(
            f"index {name!r} was not written whole: {problem}; is the disk full?"
        ) from problem
