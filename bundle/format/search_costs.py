"""What the parts of a search cost: measured at export, or typical costs where they were not."""

from __future__ import annotations

from typing import Self

from bundle.format.fields import Cost, Count, StrictModel

_CACHED_BYTES = 4 << 20
"""Vectors that a processor's cache holds: about as many as where exact scores begin to cost more
than a scan.
"""
_VECTOR_COSTS = {
    "uncached": (0.2, 50.0),
    "gathered": (0.05, 200.0),
    "reordered": (0.2, 200.0),
    "leaf_vector": (0.003, 20.0),
    "scanned": (0.003, 20.0),
    "code_gathered": (0.0, 200.0),
}
"""The lowest and the highest cost of a vector, code or candidate that is possible.

Each part reads as much memory for each vector as its exact score, or a known share of it. On quiet
and on busy machines, with vectors of 16 to 4,096 dims, the costs were at least four times the
lowest, and at most a tenth of the highest.
"""
_VALUE_COSTS = {
    "exact_start": (500.0, 5e7),
    "tree_start": (0.0, 5e8),
    "fetched": (0.0, 1e6),
    "scan_start": (0.0, 5e7),
    "found": (0.0, 1e6),
}
"""The same limits of parts that take as long for short vectors as for long ones, in units of the
time that one dim of an exact score takes. An exact search begins with calls of NumPy, which take
thousands of these units.
"""
_CODE_COSTS = ("scan_start", "scanned", "found", "code_gathered")
_DIM_MIN = 16
"""The exact score of a shorter vector takes as long as that of a vector of this dim."""


class SearchCosts(StrictModel):
    """What the parts of a search of a tree cost, measured when it was exported.

    A service chooses how to search by these numbers, so that every worker and replica chooses
    alike. They are ratios, which differ less between machines than seconds do: the unit is the time
    that the exact score of one vector takes, where the vectors lie side by side.
    """

    measured: bool = True
    """Whether the costs were measured; otherwise they are typical ones for the dim of the index."""
    exact_start: Cost
    """The cost of each exact search of some vectors, whatever their number."""
    cached: Count
    """The number of vectors that cost one unit each: most of them are in the processor's cache."""
    uncached: Cost
    """The cost of each further vector."""
    gathered: Cost
    """The cost of each vector that is copied, so that it lies beside the others."""
    reordered: Cost
    """The cost of each candidate that is scored exactly, where its vector lies."""
    tree_start: Cost
    """The cost of each search of the tree, all partitions together, whatever it fetches."""
    leaf_vector: Cost
    """The cost of each vector in a leaf that is searched."""
    fetched: Cost
    """The cost of each candidate that the tree returns."""
    scan_start: Cost = 0.0
    """The cost of each scan of codes, whatever their number. This and the following costs are 0
    without codes.
    """
    scanned: Cost = 0.0
    """The cost of each code that is compared."""
    found: Cost = 0.0
    """The cost of each candidate that a scan returns."""
    code_gathered: Cost = 0.0
    """The cost of each code that is copied, so that it lies beside the others."""

    @classmethod
    def typical(cls, dim: int, *, coded: bool) -> Self:
        """Returns what searches usually cost.

        The right way to search may cost a few times as much as the way that these costs choose; the
        recall is reached all the same.

        Args:
          dim: The dim of the vectors.
          coded: Whether the index has codes.
        """
        # Rounded from measurements of trees of 20,000 to 1,000,000 vectors of 64 to 1,024 dims.
        dim = max(dim, _DIM_MIN)
        costs = cls(
            measured=False,
            exact_start=250_000 / dim,
            cached=cached_vectors(dim),
            uncached=1.8,
            gathered=4.0,
            reordered=2.5,
            tree_start=80_000 / dim,
            leaf_vector=0.2,
            fetched=250 / dim,
        )
        if not coded:
            return costs
        codes = {
            "scan_start": 250_000 / dim,
            "scanned": 0.13,
            "found": 500 / dim,
            "code_gathered": 1.5,
        }
        return costs.model_copy(update=codes)

    def of_tree(self, leaf_vectors: float, fetched: float, reordered: float) -> float:
        """Returns the cost of one search of a tree.

        Args:
          leaf_vectors: The number of vectors in the leaves that are searched.
          fetched: The number of candidates that the tree returns.
          reordered: The number of those that are scored exactly.
        """
        fetching = self.tree_start + self.leaf_vector * leaf_vectors + self.fetched * fetched
        return fetching + self.reordered * reordered

    def implausible_part(self, size: int, dim: int, *, coded: bool) -> str:
        """Returns which cost cannot be true, and what is possible; empty: all of them can.

        Measurements on a machine that is busy with other work may be far from the truth.

        Args:
          size: The number of vectors of the index.
          dim: Their dim.
          coded: Whether the index has codes.
        """
        dim = max(dim, _DIM_MIN)
        # In units of an exact score, whose time grows with the dims.
        ranges = dict(_VECTOR_COSTS)
        for name, (lowest, highest) in _VALUE_COSTS.items():
            ranges[name] = lowest / dim, highest / dim
        skipped: set[str] = set()
        if not coded:
            skipped.update(_CODE_COSTS)
        if size <= self.cached:  # no search reads further vectors
            skipped.add("uncached")
        for name, (lowest, highest) in ranges.items():
            cost = getattr(self, name)
            if name not in skipped and not lowest <= cost <= highest:
                return (
                    f"{name} is {cost:g}; for vectors of dim {dim}, {lowest:g} to {highest:g} is "
                    "possible"
                )
        return ""


def cached_vectors(dim: int) -> int:
    """Returns how many vectors a processor's cache holds.

    Args:
      dim: The dim of the vectors.
    """
    return _CACHED_BYTES // (4 * dim)
