"""Manifest entries that describe indexes, and how well they were found to search."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from bundle.format import paths
from bundle.format.fields import Cost, Count, Length, Name, Path, Positive, StrictModel

CANDIDATES_MAX = 1 << 32
"""Of a corpus: positions of candidates have 32 bits, in ScaNN and in the indexes of filters."""

Distance = Literal["dot_product", "squared_l2", "cosine"]


class Recall(StrictModel):
    """recall@k against exact search, measured when the index was built."""

    k: Positive
    value: float
    low: float
    """Lower end of the 95 % Wilson interval."""
    queries: Positive
    chosen_on: Count = 0
    """Other queries that the setting was chosen on; 0: there was nothing to choose, or it was
    chosen on the same queries.
    """
    target: float
    representative: bool = True
    """Whether the queries are examples of the recipe; else they were invented from what the
    features say.
    """


class CostPoint(StrictModel):
    """One setting that was tried: its recall on all queries, and its cost as a share of exact
    search's time.
    """

    parameters: dict[str, Any]
    recall: float
    relative_cost: float


class DepthPoint(StrictModel):
    """How a tree is searched for a k beyond that of its recall, and the recall measured there."""

    k: Positive
    leaves_to_search: Positive
    reorder: Positive
    recall: float


class Codes(StrictModel):
    """Codes of the vectors of a tree, half a byte for every two dims: searches with a filter
    compare those of its matches.
    """

    file: Path
    """Rows of ceil(ceil(dim / 2) / 2) bytes, in the corpus' order."""
    codebook: Path
    """Raw float32: 16 centroids of two dims, for every two dims of a vector."""

    @classmethod
    def of(cls, index: str) -> Codes:
        """Returns the entry of an index's codes."""
        directory = paths.index_codes(index)
        return cls(file=f"{directory}/codes.bin", codebook=f"{directory}/codebook.bin")


class SearchCosts(StrictModel):
    """What the parts of a search of a tree cost, measured when it was exported.

    A service chooses how to search by these numbers, so that every worker and replica chooses
    alike. They are ratios, which differ less between machines than seconds do: the unit is the time
    that the exact score of one vector takes, where the vectors lie side by side.
    """

    exact_start: Cost
    """For each exact search of some vectors, whatever their number."""
    cached: Count
    """Vectors of which each costs one unit; of so many, most are in the processor's cache."""
    uncached: Cost
    """For each vector beyond these."""
    gathered: Cost
    """For each vector that is copied, so that it lies beside the others."""
    reordered: Cost
    """For each candidate that is scored exactly, where its vector lies."""
    tree_start: Cost
    """For each search of the tree, all partitions together, whatever it fetches."""
    leaf_vector: Cost
    """For each vector in a leaf that is searched."""
    fetched: Cost
    """For each candidate that the tree returns."""
    scan_start: Cost = 0.0
    """For each scan of codes, whatever their number; like what follows, 0 without codes."""
    scanned: Cost = 0.0
    """For each code that is compared."""
    found: Cost = 0.0
    """For each candidate that a scan returns."""
    code_gathered: Cost = 0.0
    """For each code that is copied, so that it lies beside the others."""


class Index(StrictModel):
    """Nearest-candidate search over one corpus."""

    corpus: Name
    query_tower: Name
    candidate_tower: Name
    kind: Literal["brute_force", "tree_ah"]
    distance: Distance
    dim: Positive
    directory: Path
    partitions: Length = 1
    """Indexes over ranges of the candidates, searched as one; all of the same parameters."""
    vectors: Path
    """Raw float32 rows in the corpus' order: for search by item, exact search and checks."""
    parameters: dict[str, Any]
    recall: Recall
    recall_of_tables: Recall | None = None
    """Where tables were converted: the same, against exact search over vectors made of the
    checkpoint's own rows.
    """
    recall_of_cold_users: Recall | None = None
    """On the queries of users without any id in the bags of the query tower, where it has bags."""
    curve: tuple[CostPoint, ...] = ()
    depths: tuple[DepthPoint, ...] = ()
    """Of a tree, by rising k, each above that of `recall`."""
    codes: Codes | None = None
    """Of a tree, where filters may match so many that exact scores of all cost more."""
    costs: SearchCosts | None = None
    """Of a tree, which always has them."""

    @model_validator(mode="after")
    def _check_costs(self) -> Self:
        if self.kind == "tree_ah" and self.costs is None:
            raise ValueError("a tree_ah index has no costs; export the bundle again")
        return self

    @property
    def directories(self) -> tuple[str, ...]:
        """Of ScaNN's files of each partition."""
        return paths.index_partitions(self.directory, self.partitions)
