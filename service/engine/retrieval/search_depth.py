"""How deep an index is searched, and where scoring all candidates that match costs less.

A search fetches a pool of candidates by their quantized vectors, and reorders the best of them by
their exact scores. The exporter has measured which leaves and which pool reach a recall, for the k
of the recipe and for some larger ones; a filter that few candidates match needs more of both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bundle.format.manifest import Index
from service.versions.version import LoadedIndex

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

    def __init__(self, index: LoadedIndex, setting: Setting, k: int, matching: int) -> None:
        """Plans a search.

        Args:
          index: that is searched.
          setting: leaves and reordering for the k of the recipe.
          k: neighbors wanted.
          matching: candidates that match the filter.
        """
        self._index = index
        self._size = len(index.vectors)
        self._exact_ns = index.entry.dim * matching * _PICK_NS
        if matching == self._size:
            self._exact_ns = index.entry.dim * matching * _SCORE_NS
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
        """Returns whether to fetch a pool costs less than to score all that match."""
        if pool >= self._size:
            return False
        dim = self._index.entry.dim
        leaves = self.leaves(pool)
        scanned_share = 1.0 if leaves is None else leaves / self._total_leaves
        scan_ns = _SCORE_NS if leaves is None else _SCAN_NS
        # The same number is fetched from each partition.
        fetch_ns = self._index.entry.partitions * (_SEARCH_NS + _FETCH_NS * pool)
        index_ns = fetch_ns + scan_ns * dim * self._size * scanned_share
        return index_ns < self._exact_ns


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
