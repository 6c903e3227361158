"""Manifest entries that describe indexes, and how well they were found to search."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from bundle.format import paths
from bundle.format.fields import Count, Length, Name, Path, Positive, StrictModel
from bundle.format.search_costs import SearchCosts

CANDIDATES_MAX = 1 << 32
"""The maximum number of candidates in a corpus: their positions have 32 bits, in ScaNN and in the
indexes of filters.
"""

Distance = Literal["dot_product", "squared_l2", "cosine"]
Engine = Literal["scann", "faiss"]
"""The library that an index was built with, and is searched with."""
UNNAMED_ENGINE: Engine = "scann"
"""The engine of an index whose manifest entry names none: of all that were written before the field
existed.
"""


class Recall(StrictModel):
    """recall@k against exact search, measured when the index was built."""

    k: Positive
    value: float
    low: float
    """The lower end of the 95 % Wilson interval."""
    queries: Positive
    chosen_on: Count = 0
    """The number of other queries that the setting was chosen on; 0: There was nothing to choose,
    or it was chosen on the same queries.
    """
    target: float
    representative: bool = True
    """Whether the queries are examples of the recipe; otherwise they were drawn from what the
    features say.
    """


class CostPoint(StrictModel):
    """One setting that was tried: its recall on all queries, and its cost as a share of exact
    search's time.
    """

    parameters: dict[str, Any]
    recall: float
    relative_cost: float


class CurvePoint(StrictModel):
    """One depth of the searches for some k, and the recall that was measured there."""

    leaves_to_search: Positive
    reorder: Positive
    recall: float
    """The mean over all queries."""
    low: float
    """The lower end of its 95 % interval: the recall that other queries reach."""


class RecallCurve(StrictModel):
    """How deep a tree is searched for a k, by the recall that is to be reached."""

    k: Positive
    points: tuple[CurvePoint, ...]
    """By rising cost, and rising `low`."""

    def cheapest(self, target: float) -> CurvePoint | None:
        """Returns the cheapest depth whose `low` reaches a recall; None: none does."""
        return next((point for point in self.points if point.low >= target), None)


class Codes(StrictModel):
    """Codes of the vectors of a tree, half a byte for every two dims: searches with a filter
    compare those of its matches.
    """

    file: Path
    """The codes: rows of ceil(ceil(dim / 2) / 2) bytes, in the order of the corpus."""
    codebook: Path
    """The centroids, raw float32: 16 centroids of two dims for every two dims of a vector."""

    @classmethod
    def of(cls, index: str) -> Codes:
        """Returns the entry of an index's codes."""
        directory = paths.index_codes(index)
        return cls(file=f"{directory}/codes.bin", codebook=f"{directory}/codebook.bin")


class Index(StrictModel):
    """Nearest-candidate search over one corpus."""

    corpus: Name
    query_tower: Name
    candidate_tower: Name
    engine: Engine = UNNAMED_ENGINE
    kind: Literal["brute_force", "tree_ah"]
    distance: Distance
    dim: Positive
    directory: Path
    partitions: Length = 1
    """The number of partitions: indexes over ranges of the candidates, searched as one, all with
    the same parameters.
    """
    vectors: Path
    """Raw float32 rows in the order of the corpus, for search by item, exact search and checks."""
    parameters: dict[str, Any]
    recall: Recall
    recall_of_tables: Recall | None = None
    """The recall against exact search over vectors made of the checkpoint's own rows, where tables
    were converted.
    """
    recall_of_cold_users: Recall | None = None
    """The recall on queries of users without any id in the bags of the query tower, where it has
    bags.
    """
    curve: tuple[CostPoint, ...] = ()
    recall_curves: tuple[RecallCurve, ...] = ()
    """How deep a tree is searched, by rising k, the first of which is that of `recall`; () for
    exact search.
    """
    codes: Codes | None = None
    """The codes of a tree, where filters may match so many candidates that their exact scores cost
    more.
    """
    costs: SearchCosts | None = None
    """The costs of a tree, which always has them."""

    @model_validator(mode="after")
    def _check_costs(self) -> Self:
        if self.kind == "tree_ah" and self.costs is None:
            raise ValueError("a tree_ah index has no costs; export the bundle again")
        return self

    def implausible_cost(self, size: int) -> str:
        """Returns which of the costs cannot be true, and what is possible; empty: all of them can.

        Args:
          size: The number of candidates of the corpus.
        """
        if self.costs is None:
            return ""
        return self.costs.implausible_part(size, self.dim, coded=self.codes is not None)

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of the engine's files, one for each partition."""
        return paths.index_partitions(self.directory, self.partitions)
