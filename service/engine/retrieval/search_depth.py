"""How a query is searched, and how deep: by the tree, by the codes of what matches, or exactly.

A search of the tree fetches a pool of candidates by their quantized vectors, and reorders the best
of them by their exact scores. The exporter has measured which leaves and which pool reach a recall,
for the k of the recipe and for some larger ones; a filter that few candidates match needs more of
both. Without the tree, the codes of all that match are scanned, or, where they are few, all their
exact scores are computed.

The cheapest way is taken, by costs that the exporter has measured (ADR 34, 49 and 57). They stand
in the manifest, so that all workers and replicas choose alike, and a list does not depend on which
of them computes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.indexes import Index
from bundle.format.search_costs import SearchCosts
from service.versions.version import LiveIndex, LoadedIndex

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.code_blocks import BlockedCodes
    from runtime.codes import VectorCodes

_SEARCHES_PER_FILTER = 30
"""Searches that are assumed to share the cost of collecting what a filter matches. How often a
filter really is requested must not change a list.
"""
_SCAN_COST_MAX = 0.75
"""Maximum cost of a scan, as a share of the cost of exact scores: these find all neighbors, and
costs are measured within about a quarter.
"""
_POOL_PER_NEIGHBOR = 4
"""Number of candidates found by codes that are reordered at first, for each neighbor."""
_POOL_MIN = 300
"""Minimum number of candidates found by codes that are reordered at first. A smaller pool shows too
little of what lies behind it; a larger one costs every scan.
"""
FETCHED_PER_POOL = 2
"""Candidates that a scan finds, for each that is reordered at first: every other search needs more
(measured where 10 % match), and they cost less than a second scan.
"""
_LATE_PER_MISSED = 1.5
"""Neighbors that the later half of a pool may hold for each that may be missed. With 1, searches go
deeper than they need to on average; with 2, recalls of 0.95 were down to 0.92 (measured at k = 10).
"""
_RECALL_OF_CHANGED = 0.99
"""Minimum recall among changed candidates, so that lists are hardly worse for changes. Most scans
reach it with their first pool (measured with 16 to 256 dims).
"""
_SCANNED_PER_FETCHED = 12
"""Minimum number of candidates in the leaves searched, for each that is fetched; with fewer, the
nearest are not among them.
"""
_SPARE_FACTOR = 1.2
_SPARE_NEIGHBORS = 10
"""Minimum pool, in matches: this factor of k plus this number. With a pool of k matches, a single
excluded candidate would take a second, deeper search; each spare one costs an exact score.
"""
_MATCHES_BY_SHARE = 1 / 3
"""How the number of matches to fetch grows with the share of the candidates that match, as a power:
a share s takes s^(-2/3) times as many candidates as no filter does (ADR 34).
"""
_DECADES_TO_ONE_PER_NEIGHBOR = 4
"""Decades by which the share of the matches has to fall until one match is fetched for each
neighbor, where an index reorders few for each. The power 1/3 alone fetched too few there: recall
was 0.918 instead of 0.95 where a tenth of 100,000 candidates matched.
"""
_LEAVES_BY_K = 0.75
"""How the leaves grow with k beyond the largest k that was measured, as a power. There, as many
candidates are reordered for each neighbor.
"""


class Setting(NamedTuple):
    """How deep a tree is searched for some k where no filter is.

    Attributes:
      leaves: The number of leaves to search; None: the index has none.
      reorder: The number of candidates to reorder.
    """

    leaves: int | None
    reorder: int


class SearchDepth:
    """The depth of one search by the index itself.

    It depends on the index, its setting, k and the number of candidates that match the filter
    alone, so that a list does not depend on what else is searched or was searched before.

    Attributes:
      share: The share of the candidates that match.
      reorder: The number of candidates of the smallest pool whose exact scores are computed.
      pool: The number of candidates to fetch at first.
    """

    def __init__(
        self, index: LoadedIndex, setting: Setting, k: int, matching: int, otherwise: float
    ) -> None:
        """Plans a search.

        Args:
          index: The index that is searched.
          setting: The leaves and the reordering for k.
          k: The number of neighbors.
          matching: The number of candidates that match the filter.
          otherwise: The cost of a search of these without the tree.
        """
        self._costs = index.costs
        self._size = len(index.vectors)
        self._otherwise = otherwise
        matches_min = math.ceil(_SPARE_FACTOR * (k + _SPARE_NEIGHBORS))
        self.share = max(1, matching) / self._size

        self.reorder = max(setting.reorder, matches_min)
        matches = max(_matches_fetched(k, self.reorder, self.share), matches_min)
        self.pool = min(self._size, math.ceil(matches / self.share))

        self._leaves = setting.leaves
        self._total_leaves: int = index.entry.parameters.get("num_leaves", 0)
        self._first_leaves = self._leaves_of(self.pool)

    def leaves(self, pool: int) -> int | None:
        """Returns the leaves of a tree to search for a pool; None: the index is no tree."""
        if pool == self.pool:
            return self._first_leaves
        return self._leaves_of(pool)

    def _leaves_of(self, pool: int) -> int | None:
        """Computes `leaves`: the deeper the pool, the more leaves have some of it (measured)."""
        if self._leaves is None:
            return None
        if pool <= self.reorder:  # as it was measured
            return min(self._total_leaves, self._leaves)
        deeper = self._leaves * math.sqrt(pool / self.reorder)
        scanned = _SCANNED_PER_FETCHED * pool * self._total_leaves / self._size
        return min(self._total_leaves, math.ceil(max(deeper, scanned)))

    def pays(self, pool: int) -> bool:
        """Returns whether to fetch a pool costs less than to search what matches alone."""
        return pool < self._size and self.cost(pool) < self._otherwise

    def cost(self, pool: int) -> float:
        """Returns what it costs to fetch a pool and to reorder the best of it; infinity if that was
        not measured.
        """
        leaves = self.leaves(pool)
        costs = self._costs
        if leaves is None or costs is None:
            return math.inf
        # Leaves have about equally many vectors.
        leaf_vectors = self._size * leaves / self._total_leaves
        reordered = min(pool * self.share, self.reorder * pool / self.pool)
        return costs.of_tree(leaf_vectors, pool, reordered)


class ScanDepth:
    """The depth of scans of the codes of what matches, or of all. It depends on the index, the
    recall, k and the number of matches, and on what a scan finds.

    No curve tells how many of the candidates found by codes are to be reordered: that depends on
    the vectors and on the filter, and is several times as many where what matches is far from the
    query. But the later a candidate comes by its codes, the less often is it a true neighbor. So
    where the later half of a pool holds a share of the k best, at most about as many lie behind the
    pool.

    Attributes:
      codes: The codes of all vectors.
      pool: The number of candidates to reorder at first.
    """

    def __init__(
        self,
        codes: VectorCodes | BlockedCodes,
        costs: SearchCosts,
        recall: float,
        k: int,
        matching: int,
        otherwise: float,
    ) -> None:
        """Plans scans.

        Args:
          codes: The codes of all vectors of the index.
          costs: The costs of its searches.
          recall: The minimum recall.
          k: The number of neighbors.
          matching: The number of candidates that match the filter.
          otherwise: The maximum cost of a scan of these.
        """
        self.codes = codes
        self.pool = max(_POOL_MIN, _POOL_PER_NEIGHBOR * k)
        self._k = k
        self._late_max = _LATE_PER_MISSED * (1 - recall) * k
        self._matching = matching
        match_cost = costs.scanned + costs.code_gathered / _SEARCHES_PER_FILTER
        self._scan_cost = costs.scan_start + match_cost * matching
        self._pool_cost = costs.found * FETCHED_PER_POOL + costs.reordered
        self._otherwise = otherwise

    def cost(self, pool: int) -> float:
        """Returns what a scan costs that reorders a pool."""
        return self._scan_cost + self._pool_cost * pool

    def pays(self, pool: int) -> bool:
        """Returns whether to reorder a pool costs enough less than to score all that match."""
        return 2 * pool < self._matching and self.cost(pool) < self._otherwise

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


class Plan(NamedTuple):
    """How queries are searched: by the index as long as that pays, else by a scan as long as that
    does, else by exact scores of all that match.

    Attributes:
      depth: The depth of searches by the index; None: none is made.
      scan: The depth of scans; None: none is made.
    """

    depth: SearchDepth | None
    scan: ScanDepth | None


def plan_search(index: LoadedIndex, recall: float, k: int, matching: int | None) -> Plan:
    """Returns how to search for a request; plans are kept with the index.

    Args:
      index: The index that is searched.
      recall: The minimum recall; 0: that of the recipe; 1: all neighbors, by exact search.
      k: The number of neighbors.
      matching: The number of candidates that match the filter; None: there is no filter.
    """
    key = recall, k, matching
    plan: Plan | None = index.plans.get(key)
    if plan is None:
        if isinstance(index, LiveIndex):
            plan = _plan_changed(index, recall, k, matching)
        else:
            plan = _plan(index, recall, k, matching)
        index.plans.keep(key, plan)
    return plan


def scores_live_alone(index: LoadedIndex, plan: Plan, live_share: float, matching: int) -> bool:
    """Returns whether to score the live candidates that match costs less than what is planned.

    Neither a tree nor codes know which candidates are denied. To find the nearest of the others,
    both return so many more that, of the few that are live, nearly all are among them.

    Args:
      index: The index that is searched.
      plan: How it would be searched.
      live_share: The share of its candidates that are not denied, above 0.
      matching: The number of candidates that match the filter; all without one.
    """
    depth, scan = plan
    if depth is not None:
        pool = math.ceil(depth.pool / live_share)
        if pool >= len(index.vectors):
            return True
        planned_cost = depth.cost(pool)
    elif scan is not None:
        planned_cost = scan.cost(min(matching, math.ceil(scan.pool / live_share)))
    else:
        return False
    costs = index.costs
    if costs is None:
        return False
    return costs.exact_start + costs.reordered * live_share * matching < planned_cost


def _plan(index: LoadedIndex, recall: float, k: int, matching: int | None) -> Plan:
    """Plans a search; see `plan_search`."""
    costs = index.costs
    filtered = matching is not None
    count = len(index.vectors)
    if matching is not None:
        count = matching
    target = recall or index.entry.recall.target
    # Curves and scans show which share of the neighbors is found, not that none is missing.
    if filtered and target >= 1:
        return Plan(None, None)
    if costs is None:
        # Only exact search has no costs. It would also score what does not match, so that with a
        # filter, only what matches is scored.
        if filtered:
            return Plan(None, None)
        return Plan(SearchDepth(index, _exported(index.entry), k, count, 0.0), None)

    otherwise = _exact_cost(costs, count, filtered)
    scan = None
    if filtered and index.codes is not None:
        scan = ScanDepth(index.codes, costs, target, k, count, _SCAN_COST_MAX * otherwise)
        if scan.pays(scan.pool):
            otherwise = scan.cost(scan.pool)
        else:
            scan = None
    setting = choose_setting(index.entry, k, recall)
    if setting is None:
        return Plan(None, scan)
    depth = SearchDepth(index, setting, k, count, otherwise)
    if filtered and not depth.pays(depth.pool):
        return Plan(None, scan)
    return Plan(depth, scan)


def _plan_changed(index: LiveIndex, recall: float, k: int, matching: int | None) -> Plan:
    """Plans a search among changed candidates; see `plan_search`."""
    target = max(recall or index.entry.recall.target, _RECALL_OF_CHANGED)
    if index.codes is None or target >= 1:
        return Plan(None, None)
    count = len(index.vectors)
    if matching is not None:
        count = matching
    otherwise = _SCAN_COST_MAX * _exact_cost(index.costs, count, matching is not None)
    scan = ScanDepth(index.codes, index.costs, target, k, count, otherwise)
    if not scan.pays(scan.pool):
        return Plan(None, None)
    return Plan(None, scan)


def _exact_cost(costs: SearchCosts, count: int, filtered: bool) -> float:
    """Returns what exact scores of `count` candidates cost."""
    # The first vectors of a copy lie in the core's cache, and cost less to score than the others.
    cached = min(count, costs.cached)
    cost = costs.exact_start + cached + costs.uncached * (count - cached)
    if filtered:
        cost += costs.gathered / _SEARCHES_PER_FILTER * count
    return cost


def _matches_fetched(k: int, reorder: int, share: float) -> float:
    """Returns how many candidates that match are to be among those fetched, where as many as
    `reorder` suffice without a filter.

    Where a share matches, spread evenly: the fewer match, the less alike they score, and the fewer
    are to be reordered for each neighbor. Both rules were measured: the first where ten or more
    are reordered for each neighbor, the second where fewer are.
    """
    by_share = reorder * math.pow(share, _MATCHES_BY_SHARE)
    decades = math.log10(share)
    by_neighbor = k * math.pow(reorder / k, 1 + decades / _DECADES_TO_ONE_PER_NEIGHBOR)
    return max(by_share, by_neighbor)


def choose_setting(entry: Index, k: int, recall: float) -> Setting | None:
    """Returns the cheapest depth that reaches a recall for a k, by what was measured.

    Args:
      entry: The manifest entry of the index, a tree.
      k: The number of neighbors.
      recall: The minimum recall; 0: that of the recipe, or else the highest that was measured. Up
        to the k of the recipe, the tree is then searched as it was exported.

    Returns:
      The depth; None: exact search alone reaches it.
    """
    if not recall and k <= entry.recall.k:
        return _exported(entry)
    if recall >= 1:
        return None
    settings = _settings_by_k(entry, recall)
    below = max((key for key in settings if key <= k), default=min(settings))
    above = min((key for key in settings if key >= k), default=0)
    lower = settings[below]
    if k <= below:
        return lower
    if not above:
        return lower and _grown(lower, k / below, entry)
    upper = settings[above]
    if lower is None or upper is None or lower.leaves is None or upper.leaves is None:
        return upper
    # Recall may fall anywhere between two measured k, and all at once: where the neighbors of a
    # query are a cluster of candidates, the first one outside of it is in other leaves.
    return Setting(
        max(lower.leaves, upper.leaves),
        math.ceil(k * max(lower.reorder / below, upper.reorder / above)),
    )


def _settings_by_k(entry: Index, recall: float) -> dict[int, Setting | None]:
    """Returns the cheapest depth that reaches a recall for each k that was measured; None: no depth
    does. See `choose_setting`.
    """
    target = recall or entry.recall.target
    settings: dict[int, Setting | None] = {entry.recall.k: None}
    for curve in entry.recall_curves:
        best = curve.cheapest(target)
        if best is None and not recall:
            best = curve.points[-1]
        if best is None:
            settings[curve.k] = None
        else:
            settings[curve.k] = Setting(best.leaves_to_search, best.reorder)
    if not recall:
        settings[entry.recall.k] = _exported(entry)
    return settings


def _exported(entry: Index) -> Setting:
    """Returns the depth that an index was exported with."""
    parameters = entry.parameters
    return Setting(parameters.get("leaves_to_search"), parameters.get("reorder", 0))


def _grown(setting: Setting, factor: float, entry: Index) -> Setting:
    """Returns the depth for a k that is larger than the measured ones by a factor."""
    leaves = setting.leaves
    if leaves is not None:
        grown_leaves = math.ceil(leaves * math.pow(factor, _LEAVES_BY_K))
        leaves = min(entry.parameters["num_leaves"], grown_leaves)
    return Setting(leaves, math.ceil(setting.reorder * factor))
