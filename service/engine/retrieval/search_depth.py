"""How deep an index is searched, and where searching the candidates that match alone costs less.

A search fetches a pool of candidates by their quantized vectors, and reorders the best of them by
their exact scores. The exporter has measured which leaves and which pool reach a recall, for the k
of the recipe and for some larger ones; a filter that few candidates match needs more of both.

Without the tree, the codes of all that match are scanned, or, where they are few, all their exact
scores are computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Index
from service.versions.version import LoadedIndex

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.codes import VectorCodes

_SCORE_NS = 0.25
_PICK_NS = 0.45
_SCAN_NS = 0.04
_FETCH_NS = 70.0
_SEARCH_NS = 50_000.0
"""What a search costs, measured with a million vectors of dim 64: per value of a vector that is
scored, of all vectors or of those that match; per value of a vector in a leaf that is searched; per
candidate that the index fetches; per search of it.

To score a value of a vector that matches costs 0.25 where their vectors were laid side by side
before, and 0.95 else. A cost between them makes the choice independent of what is in a cache.
"""
_CODE_NS = 0.1
_REORDER_NS = 2.0
"""What a scan of codes costs beside its start: per value of a vector that matches, between 0.03
where the codes were packed before and 0.4 else; per value of a vector that is reordered.
"""
_POOL_PER_NEIGHBOR = 4
_POOL_MIN = 300
"""Candidates found by codes that are reordered at first, for each neighbor and in all."""
_LATE_PER_MISSED = 1.5
"""Neighbors that the later half of a pool may hold for each that may be missed. With 1, searches go
deeper than they need to on average; with 2, recalls of 0.95 were down to 0.92 (measured at k = 10).
"""
_SCANNED_PER_FETCHED = 12
"""Least candidates in the leaves searched for each that is fetched; with fewer, those nearest are
not among them.
"""
_LEAVES_BY_K = 0.5
_POOL_BY_K = 0.75
"""How the leaves and the pool grow with k beyond the largest that was measured, as powers."""


class Setting(NamedTuple):
    """How an index is searched; None: as it was exported."""

    leaves: int | None = None
    reorder: int | None = None


_EXPORTED = Setting()


class SearchDepth:
    """The depth of one search.

    It depends on the index, its setting, k and the number of candidates that match the filter
    alone, so that a list does not depend on what else is searched or was searched before.

    Attributes:
      share: of the candidates, those that match.
      reorder: candidates whose exact scores are computed, of the smallest pool.
    """

    def __init__(
        self, index: LoadedIndex, setting: Setting, k: int, matching: int, otherwise_ns: float
    ) -> None:
        """Plans a search.

        Args:
          index: that is searched.
          setting: leaves and reordering for the k of the recipe.
          k: neighbors wanted.
          matching: candidates that match the filter.
          otherwise_ns: what a search of these without the tree costs.
        """
        self._index = index
        self._size = len(index.vectors)
        self._otherwise_ns = otherwise_ns
        self._slack = math.ceil(1.2 * (k + 10))
        self.share = max(1, matching) / self._size

        leaves_growth, pool_growth = _growth(index.entry, k)
        reorder = setting.reorder or index.approximate.reorder
        self.reorder = max(math.ceil(reorder * pool_growth), self._slack)
        self._leaves: float | None = None
        self._total_leaves: int = index.entry.parameters.get("num_leaves", 0)
        if self._total_leaves:
            leaves = setting.leaves or index.entry.parameters["leaves_to_search"]
            self._leaves = leaves * leaves_growth

    def pool(self) -> int:
        """Returns how many candidates to fetch at first.

        Where a share matches, spread evenly: the fewer match, the less alike they score.
        """
        alike = self.reorder * math.pow(self.share, -2 / 3)
        return min(self._size, math.ceil(max(alike, self._slack / self.share)))

    def leaves(self, pool: int) -> int | None:
        """Returns the leaves of a tree to search for a pool; None: the index is no tree.

        The deeper the pool, the more leaves have some of it (measured).
        """
        if self._leaves is None:
            return None
        deeper = self._leaves * math.sqrt(pool / self.reorder)
        scanned = _SCANNED_PER_FETCHED * pool * self._total_leaves / self._size
        return min(self._total_leaves, math.ceil(max(deeper, scanned)))

    def pays(self, pool: int) -> bool:
        """Returns whether to fetch a pool costs less than to search what matches alone."""
        if pool >= self._size:
            return False
        dim = self._index.entry.dim
        leaves = self.leaves(pool)
        scanned_share = 1.0 if leaves is None else leaves / self._total_leaves
        scan_ns = _SCORE_NS if leaves is None else _SCAN_NS
        # The same number is fetched from each partition.
        fetch_ns = self._index.entry.partitions * (_SEARCH_NS + _FETCH_NS * pool)
        index_ns = fetch_ns + scan_ns * dim * self._size * scanned_share
        return index_ns < self._otherwise_ns


class ScanDepth:
    """The depth of scans of the codes of what matches. It depends on the index, the recall, k and
    the number of matches, and on what a scan finds.

    No curve tells how many of the candidates found by codes are to be reordered: that depends on
    the filter, and is several times as many where what matches is far from the query. But the later
    a candidate comes by its codes, the less often is it a true neighbor. So where the later half of
    a pool holds a share of the k best, at most about as many lie behind the pool.

    Attributes:
      codes: of all vectors.
      pool: candidates to reorder at first.
      cost_ns: of the scan.
    """

    def __init__(
        self, index: LoadedIndex, codes: VectorCodes, recall: float, k: int, matching: int
    ) -> None:
        """Plans scans.

        Args:
          index: that is searched.
          codes: of all its vectors.
          recall: the least; 0: that of the recipe.
          k: neighbors wanted.
          matching: candidates that match the filter.
        """
        self.codes = codes
        self.pool = max(_POOL_MIN, _POOL_PER_NEIGHBOR * k)
        self._k = k
        missed_max = (1 - (recall or index.entry.recall.target)) * k
        self._late_max = _LATE_PER_MISSED * missed_max
        self._dim = index.entry.dim
        self._matching = matching
        self._exact_ns = exact_ns(index, matching)
        self.cost_ns = self._cost_ns(self.pool)

    def pays(self, pool: int) -> bool:
        """Returns whether to reorder a pool costs less than to score all that match."""
        return 2 * pool < self._matching and self._cost_ns(pool) < self._exact_ns

    def suffices(self, scores: NDArray[np.float32]) -> bool:
        """Returns whether a pool reaches the recall.

        Args:
          scores: [m] exact scores of a pool in the order of its codes.
        """
        if scores.size < self._k:
            return False
        reached = np.partition(scores, -self._k)[-self._k]
        early = np.count_nonzero(scores[: scores.size // 2] >= reached)
        return bool(self._k - early <= self._late_max)

    def _cost_ns(self, pool: int) -> float:
        return _SEARCH_NS + self._dim * (_CODE_NS * self._matching + _REORDER_NS * pool)


def plan_scan(index: LoadedIndex, recall: float, k: int, matching: int) -> ScanDepth | None:
    """Plans scans of codes; `recall`, `k` and `matching`: as of `ScanDepth`.

    Returns:
      None: the index has no codes, or exact scores of all that match cost less.
    """
    if index.codes is None:
        return None
    depth = ScanDepth(index, index.codes, recall, k, matching)
    return depth if depth.pays(depth.pool) else None


def exact_ns(index: LoadedIndex, matching: int) -> float:
    """Returns what the exact scores of all that match cost."""
    value_ns = _SCORE_NS if matching == len(index.vectors) else _PICK_NS
    return index.entry.dim * matching * value_ns


def choose_setting(index: LoadedIndex, recall: float) -> Setting | None:
    """Returns the cheapest setting that was measured to reach a recall.

    Args:
      index: that is searched.
      recall: the least, by the measured curve; 0: as exported.
    Returns:
      The setting; None: exact search alone reaches it.
    """
    if not recall or index.entry.kind == "brute_force":
        return _EXPORTED
    reaching = [point for point in index.entry.curve if point.recall >= recall]
    if reaching:
        cheapest = min(reaching, key=lambda point: point.relative_cost).parameters
        return Setting(cheapest["leaves_to_search"], cheapest["reorder"])
    return _EXPORTED if index.entry.recall.value >= recall else None


def _growth(entry: Index, k: int) -> tuple[float, float]:
    """Returns by how much the leaves and the pool of a tree grow from the k of its recall to k.

    Between two measured k, both grow by a power of k.
    """
    ks = [entry.recall.k, *(depth.k for depth in entry.depths)]
    if k <= ks[0] or entry.kind == "brute_force":
        return 1.0, 1.0
    exported = entry.parameters
    leaves = [1.0]
    pools = [1.0]
    for depth in entry.depths:
        leaves.append(depth.leaves_to_search / exported["leaves_to_search"])
        pools.append(depth.reorder / exported["reorder"])
    beyond = max(1.0, k / ks[-1])
    return (
        _between(k, ks, leaves) * math.pow(beyond, _LEAVES_BY_K),
        _between(k, ks, pools) * math.pow(beyond, _POOL_BY_K),
    )


def _between(k: int, ks: list[int], growths: list[float]) -> float:
    """Returns the growth at k, along a line between the logarithms; at an end, that of the end."""
    return math.exp(float(np.interp(math.log(k), np.log(ks), np.log(growths))))
