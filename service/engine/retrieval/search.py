"""Search of an index among the candidates that a request allows: k of them wherever k are allowed.

Where few match a filter their vectors are scored exactly, side by side once the filter is requested
again. Where many do, the index finds more than are wanted, and of those that are allowed the best
are reordered; as long as too few are left, such as of matches far from the query, it searches
deeper, until scoring all that match is cheaper.

A candidate's score is that of `rank_exactly`, whatever the filter, the path or the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.tables.id_values import distinct
from runtime.exact import exact_scores, normalised, rank_exactly
from service.engine.calls import Explanation, Offsets, Selecting, Vectors
from service.engine.context import Execution
from service.engine.finite import check_finite
from service.engine.retrieval.filters import Compiled, is_among
from service.versions.version import LoadedIndex

Positions = NDArray[np.int64]
_CELLS_MAX = 4 << 20
"""Largest queries x candidates fetched in one exact search: bounds the memory of a call, 12 bytes
each.
"""
_GATHERED_BYTES_MAX = 16 << 20
"""Largest copy of matching vectors that is made even if it is not kept."""
_SCORE_NS = 0.25
_GATHER_NS = 0.7
_SCAN_NS = 0.04
_FETCH_NS = 70.0
_SEARCH_NS = 50_000.0
"""What a search costs, measured with a million vectors of dim 64: per value of a vector that is
scored, that is taken from elsewhere in memory, or that is in a leaf searched; per candidate that
the index fetches; per search of it.
"""
_SCANNED_PER_FETCHED = 12
"""Least candidates in the leaves searched for each that is fetched; with fewer, those nearest are
not among them.
"""
_FEW = 2
"""Where fewer than one in so many of those expected is allowed, others lie before the best: it goes
deeper.
"""
_PER_EXCLUDED = 4
"""Candidates fetched for each excluded one that lies before the best, around which more score about
equally.
"""


class Found(NamedTuple):
    """Positions of n queries' neighbors in the index, best first; query i owns offsets[i]:offsets[i
    + 1].
    """

    positions: Positions
    scores: NDArray[np.float32]
    offsets: Offsets
    explanations: tuple[Explanation, ...] = ()


class Allowed(NamedTuple):
    """Which candidates a request may find.

    Attributes:
      excluded: of each query, ascending and distinct.
      filter: None: all match.
    """

    excluded: Sequence[Positions]
    filter: Compiled | None = None


class Setting(NamedTuple):
    """How an index is searched; None: as it was exported."""

    leaves: int | None = None
    reorder: int | None = None


_EXPORTED = Setting()


class _Row(NamedTuple):
    """Neighbors of one query vector, and how they were found."""

    positions: Positions
    scores: NDArray[np.float32]
    path: str
    scored: int


def nearest(
    index: LoadedIndex,
    vectors: Vectors,
    k: int,
    allowed: Allowed,
    execution: Execution,
    *,
    exact: bool = False,
    recall: float = 0.0,
    offsets: Offsets | None = None,
    explain: bool = False,
) -> Found:
    """Finds the k nearest allowed candidates of each query; fewer only where fewer are allowed.

    Args:
      vectors: [v, dim] float32.
      recall: the least, by the measured curve of the index; 0: as exported.
      offsets: [n + 1] of the vectors of n queries, whose neighbors are merged by their best scores;
        None: one each.
    Raises:
      NotFinite: a score is beyond float32.
    """
    began = time.perf_counter()
    with execution.phase("search"):
        excluded = allowed.excluded
        setting = None if exact else _setting(index, recall)
        plain = None
        if setting is not None and allowed.filter is None and not any(map(len, excluded)):
            plain = index.approximate.search(vectors, k, *setting)
            if offsets is None and not explain and plain[0][:, -1].min() >= 0:  # each has k
                check_finite(plain[1], "a candidate's score")
                return Found(
                    plain[0].reshape(-1), plain[1].reshape(-1), np.arange(len(vectors) + 1) * k
                )
        if offsets is not None:
            excluded = [
                each
                for each, size in zip(excluded, np.diff(offsets), strict=True)
                for _ in range(size)
            ]
        search = _Search(index, vectors, k, excluded, allowed.filter, execution)
        rows = search.rows(setting, plain)
        if offsets is not None:
            rows = [
                search.merged(rows[first:last], first) for first, last in pairwise(offsets.tolist())
            ]
    positions = np.concatenate([row.positions for row in rows])
    scores = np.concatenate([row.scores for row in rows])
    check_finite(scores, "a candidate's score")
    ends = np.fromiter(
        accumulate([row.positions.size for row in rows], initial=0), np.int64, len(rows) + 1
    )
    if allowed.filter is not None:
        for row in rows:
            execution.count("filtered_searches", 1, row.path)
    if not explain:
        return Found(positions, scores, ends)
    search_ms = 1000 * (time.perf_counter() - began) / len(rows)
    explained = [
        _explained(index, row, allowed.filter, each, search_ms)
        for row, each in zip(rows, allowed.excluded, strict=True)
    ]
    return Found(positions, scores, ends, tuple(explained))


def explained(found: Found, request: Selecting, k: int) -> tuple[Explanation, ...]:
    """Returns the explanations of what is answered, with why queries have fewer than k
    neighbors.
    """
    later = " and ".join(
        [name for name in ("min_score", "crowding") if getattr(request, name) is not None]
    )
    explanations = []
    for each, size in zip(found.explanations, np.diff(found.offsets).tolist(), strict=True):
        if size < min(k, each.matches):
            shortfall = f"{_only(size)} candidates pass {later}"
        else:
            matches = _only(each.matches)
            shortfall = f"{matches} candidates pass the filter, the exclusions and the deny list"
        explanations.append(replace(each, shortfall="" if size >= k else shortfall))
    return tuple(explanations)


def _only(count: int) -> str:
    return f"only {count}" if count else "no"


class _Search:
    """One search for some vectors, each with what it excludes."""

    def __init__(
        self,
        index: LoadedIndex,
        vectors: Vectors,
        k: int,
        excluded: Sequence[Positions],
        compiled: Compiled | None,
        execution: Execution,
    ) -> None:
        self._index = index
        self._k = k
        self._excluded = excluded
        self._execution = execution
        self._sent = vectors
        self._vectors = normalised(vectors) if index.entry.distance == "cosine" else vectors
        self._compiled = compiled
        self._matches = None if compiled is None else compiled.matches
        self._size = len(index.vectors)
        self._dim = index.entry.dim
        self._distance = index.entry.distance
        block_bytes = (
            0 if self._matches is None else self._matches.positions.size * (4 * self._dim + 16)
        )
        self._share = (
            1.0 if self._matches is None else max(1, self._matches.positions.size) / self._size
        )
        self._fits = index.compiled.fits(block_bytes)
        self._few = block_bytes <= _GATHERED_BYTES_MAX
        self._again = compiled is not None and compiled.again

    def rows(self, setting: Setting | None, plain: tuple[Positions, Vectors] | None) -> list[_Row]:
        """Returns the neighbors of each vector.

        Args:
          setting: None: all are found exactly.
          plain: what the index found where all are allowed, with -1 where too few lie in the leaves
            searched.
        """
        rows: list[_Row | None] = [None] * len(self._vectors)
        if setting is not None and plain is not None:
            wanted = min(self._k, self._size)
            for at, (positions, scores) in enumerate(zip(*plain, strict=True)):
                if positions[wanted - 1] >= 0:
                    rows[at] = _Row(
                        positions[:wanted], scores[:wanted], "index", self._reorder(setting)
                    )
        elif setting is not None and self._pays(setting, self._pool(setting, self._share)):
            if self._matches is not None:
                self._matches = self._matches.masked(self._size)

            def search(at: int) -> None:
                rows[at] = self._overfetched(at, setting)

            self._execution.parallel(len(rows), search)
        short = [at for at, row in enumerate(rows) if row is None]
        if short:
            for at, row in zip(short, self._exactly(short), strict=True):
                rows[at] = row
        self._keep()
        return [row for row in rows if row is not None]

    def _keep(self) -> None:
        """Keeps the filter, with the mask or the block that this search has made."""
        if self._compiled is None or self._matches is None:
            return
        cache, key, matches, again = self._index.compiled, *self._compiled
        if not again or self._matches is not matches:
            cache.put(self._index, key, self._matches, self._matches.bytes)
            self._execution.gauge("filter_cache_bytes", cache.bytes)

    def merged(self, rows: list[_Row], first: int) -> _Row:
        """Returns the k best found for the vectors from `first` on, each by its best score over all
        of them.
        """
        if len(rows) == 1:
            return rows[0]
        union = distinct(np.concatenate([row.positions for row in rows]))
        scores = np.full(union.size, -np.inf, np.float32)
        for query in self._vectors[first : first + len(rows)]:
            np.maximum(
                scores, exact_scores(self._index.vectors, query, union, self._distance), out=scores
            )
        best = np.lexsort((union, -scores))[: self._k]
        path = "index" if any(row.path == "index" for row in rows) else rows[0].path
        return _Row(union[best], scores[best], path, sum(row.scored for row in rows))

    def _overfetched(self, at: int, setting: Setting) -> _Row | None:
        """Has the index fetch ever more, until enough are allowed; None: to score all
        is cheaper.
        """
        index = self._index
        excluded = self._excluded[at]
        mask = None if self._matches is None else self._matches.mask
        kept = 1 - excluded.size / (self._size + 1)
        share = self._share * kept
        base = self._pool(setting, share)
        ahead_max = _PER_EXCLUDED * excluded.size
        pool = first = base + min(base // 2, ahead_max)
        while self._pays(setting, pool):
            found = index.approximate.candidates(
                self._vectors[at], pool, self._leaves(setting, pool)
            )
            found = found if mask is None else found[mask[found]]
            matching = found.size
            found = found[~is_among(found, excluded)] if excluded.size else found
            ahead = _PER_EXCLUDED * max(0, int(matching * kept) - found.size)
            if (
                found.size >= max(self._k, pool * share / _FEW)
                and matching >= ahead + base * share / _FEW
            ):
                found = found[: self._reorder(setting) * pool // first + ahead]
                best = rank_exactly(
                    index.vectors, self._vectors[at], found, self._k, self._distance
                )
                return _Row(*best, "index", found.size)
            pool = 4 * pool if found.size >= self._k else max(4 * pool, base + ahead_max)
        return None

    def _exactly(self, some: list[int]) -> list[_Row]:
        """Scores all that match, of some of the vectors."""
        matches = self._matches
        index = self._index
        if matches is None or (matches.block is None and not self._fits and not self._few):
            return self._in_blocks(some, None if matches is None else matches.positions)
        if matches.block is None and (len(some) > 1 or (self._again and self._fits)):
            matches = matches.gathered(index)
            self._matches = matches if self._fits else self._matches
        positions = matches.positions
        block = matches.block
        lost = [_count_among(self._excluded[at], positions) for at in some]
        if block is None:
            best = rank_exactly(
                index.vectors, self._vectors[some[0]], positions, self._k + lost[0], self._distance
            )
            return [self._row(some[0], *best, positions.size)]
        together = max(1, _CELLS_MAX // max(1, positions.size))
        rows: list[_Row | None] = [None] * len(some)

        def score(number: int) -> None:
            part = slice(number * together, (number + 1) * together)
            found = block.search(self._vectors[some[part]], [self._k + each for each in lost[part]])
            rows[part] = [
                self._row(at, positions[places].astype(np.int64), scores, positions.size)
                for at, (places, scores) in zip(some[part], found, strict=True)
            ]

        self._execution.parallel(ceil_div(len(some), together), score)
        return [row for row in rows if row is not None]

    def _in_blocks(self, some: list[int], positions: NDArray[np.uint32] | None) -> list[_Row]:
        """Scores vectors where they lie, all or those at some positions, in blocks of bounded
        memory.
        """
        index = self._index
        count = self._size if positions is None else positions.size
        fetch = [min(count, self._k + self._excluded[at].size) for at in some]
        together = len(some) if len(some) * max(fetch) <= _CELLS_MAX else 1
        rows: list[_Row] = []
        for first in range(0, len(some), together):
            block = some[first : first + together]
            most = max(1, *fetch[first : first + together])
            found, _ = index.exact.search(
                self._sent[block], most, positions, each=self._execution.parallel
            )
            for at, each in zip(block, found, strict=True):
                there = each[each >= 0]
                best = rank_exactly(
                    index.vectors, self._vectors[at], there, there.size, self._distance
                )
                rows.append(self._row(at, *best, count))
        return rows

    def _row(self, at: int, positions: Positions, scores: Vectors, scored: int) -> _Row:
        """Returns the first k that are not excluded."""
        if self._excluded[at].size:
            keep = ~is_among(positions, self._excluded[at])
            positions = positions[keep]
            scores = scores[keep]
        return _Row(
            positions[: self._k], scores[: self._k], "exact" if positions.size else "none", scored
        )

    def _reorder(self, setting: Setting) -> int:
        return max(setting.reorder or self._index.approximate.reorder, self._k)

    def _pool(self, setting: Setting, share: float) -> int:
        """Returns how many to fetch where a share is allowed, spread evenly: the fewer, the less
        alike they score.
        """
        return math.ceil(
            max(self._reorder(setting) * math.pow(share, -2 / 3), 1.2 * (self._k + 10) / share)
        )

    def _leaves(self, setting: Setting, pool: int) -> int | None:
        """Returns the leaves of a tree to search: the deeper the pool, the more of them have some
        of it (measured).
        """
        parameters = self._index.entry.parameters
        if "num_leaves" not in parameters:
            return None
        total: int = parameters["num_leaves"]
        leaves = (setting.leaves or parameters["leaves_to_search"]) * math.sqrt(
            pool / self._reorder(setting)
        )
        return min(total, math.ceil(max(leaves, _SCANNED_PER_FETCHED * pool * total / self._size)))

    def _pays(self, setting: Setting, pool: int) -> bool:
        """Whether the index fetches a pool at less cost than it takes to score all that match."""
        if pool >= self._size:
            return False
        matches = self._matches
        each_ns = _SCORE_NS
        # The same number is fetched from each partition.
        index_ns = self._index.entry.partitions * (_SEARCH_NS + _FETCH_NS * pool)
        if matches is not None and matches.block is None and not (self._fits and self._again):
            each_ns += _GATHER_NS / len(self._vectors)
        exact_ns = each_ns * self._dim * (self._size if matches is None else matches.positions.size)
        if index_ns >= exact_ns:
            return False
        leaves = self._leaves(setting, pool)
        if leaves is None:
            return index_ns + _SCORE_NS * self._dim * self._size < exact_ns
        share = leaves / int(self._index.entry.parameters["num_leaves"])
        return index_ns + _SCAN_NS * self._dim * self._size * share < exact_ns


def _count_among(some: Positions, positions: NDArray[np.uint32]) -> int:
    return int(np.count_nonzero(is_among(some, positions))) if some.size else 0


def _setting(index: LoadedIndex, recall: float) -> Setting | None:
    """Returns the cheapest setting that was measured to reach a recall; None: exact search alone
    does.
    """
    if not recall or index.entry.kind == "brute_force":
        return _EXPORTED
    reaching = [point for point in index.entry.curve if point.recall >= recall]
    if reaching:
        cheapest = min(reaching, key=lambda point: point.relative_cost).parameters
        return Setting(cheapest["leaves_to_search"], cheapest["reorder"])
    return _EXPORTED if index.entry.recall.value >= recall else None


def _explained(
    index: LoadedIndex, row: _Row, compiled: Compiled | None, excluded: Positions, search_ms: float
) -> Explanation:
    size = len(index.vectors)
    if compiled is None:
        count = size - excluded.size
    else:
        positions = compiled.matches.positions
        count = positions.size - _count_among(excluded, positions)
    return Explanation(row.path, count, count / size, row.scored, search_ms)
