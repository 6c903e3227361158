"""Requests and answers of the five calls: frozen values with numpy arrays, no types of a transport.

Every request holds n examples in packed columns; a single one is n = 1. Ids are [m] int64 or [m] object (str).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Column

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
Offsets = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Target:
    """Which model answers. Empty name: the only one. Neither version nor label: the current version."""

    model: str = ""
    version: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Exclusion:
    """Candidates never returned: query i excludes `ids[offsets[i]:offsets[i + 1]]`; offsets None: every query, all."""

    ids: Ids
    offsets: Offsets | None = None


@dataclass(frozen=True)
class Retrieval:
    """The k nearest candidates of n queries, given by exactly one of features (or context ids), vectors and ids."""

    target: Target
    k: int = 10
    features: Mapping[str, Column] | None = None
    vectors: Vectors | None = None
    """[n, dim] float32; a flat [n * dim] array is taken too, the engine knows dim."""
    ids: Ids | None = None
    exclude: Exclusion | None = None
    attributes: tuple[str, ...] = ()
    index: str = ""
    exact: bool = False
    filter: Mapping[str, Any] | None = None
    context_ids: Ids | None = None
    """[n] contexts whose stored features the queries have where `features` sends none."""

    @property
    def cost(self) -> int:
        """What the call costs, in candidates ranked: about one for each query."""
        cost = 1 if self.features is None else _examples(self.features)
        if self.ids is not None:
            cost = max(cost, self.ids.size)
        if self.context_ids is not None:
            cost = max(cost, self.context_ids.size)
        if self.vectors is not None and self.vectors.ndim == 2:
            cost = max(cost, len(self.vectors))
        return cost

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long."""
        size = 0 if self.features is None else _values(self.features.values())
        for each in (self.vectors, self.ids, self.context_ids):
            if each is not None:
                size += each.size
        if self.exclude is not None:
            size += self.exclude.ids.size
        given = (self.features is None, self.context_ids is None, self.exclude is None)
        how = (self.index, self.exact, len(self.attributes), size.bit_length(), self.k.bit_length())
        return "retrieve", given, how


@dataclass(frozen=True)
class Neighbors:
    """Candidates of n queries, best first; query i owns offsets[i]:offsets[i + 1]."""

    ids: Ids
    scores: NDArray[np.float32]
    offsets: Offsets
    attributes: Mapping[str, list[Any]] = field(default_factory=dict)
    """[m] values each: int, float, str, list[str] or None."""


@dataclass(frozen=True)
class Retrieved:
    """Answer to a Retrieval."""

    model: str
    version: int
    neighbors: Neighbors
    searched: int


@dataclass(frozen=True)
class Ranking:
    """Scores of m candidates for n contexts; context i owns candidates offsets[i]:offsets[i + 1]."""

    target: Target
    context: Mapping[str, Column]
    candidate_ids: Ids | None = None
    candidates: Mapping[str, Column] = field(default_factory=dict)
    offsets: Offsets | None = None
    """None: one context that owns all candidates."""
    heads: tuple[str, ...] = ()
    k: int = 0
    """0: all, in the order sent."""
    tower: str = ""
    formula: str = ""
    """Over the tower's outputs, gives the score; empty: the bundle's own."""
    context_ids: Ids | None = None
    """[n] contexts whose stored features are taken where `context` sends none."""

    @property
    def cost(self) -> int:
        """What the call costs: its candidates."""
        return _examples(self.candidates) if self.candidate_ids is None else int(self.candidate_ids.size)

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long."""
        size = _values(self.context.values()) + _values(self.candidates.values())
        ids = 0 if self.candidate_ids is None else int(self.candidate_ids.size)
        how = (self.tower, len(self.heads), bool(self.formula), self.context_ids is None)
        return ("rank", *how, size.bit_length(), ids.bit_length())


@dataclass(frozen=True)
class Ranked:
    """Answer to a Ranking."""

    model: str
    version: int
    ids: Ids | None
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]
    heads: Mapping[str, NDArray[np.float32]]
    offsets: Offsets


@dataclass(frozen=True)
class Recommendation:
    """The k best of `candidates` retrieved ones, ranked, for n contexts."""

    target: Target
    features: Mapping[str, Column]
    k: int = 10
    candidates: int = 0
    """0: max(100, 10 k)."""
    exclude: Exclusion | None = None
    attributes: tuple[str, ...] = ()
    index: str = ""
    tower: str = ""
    formula: str = ""
    """As a Ranking's."""
    context_ids: Ids | None = None
    """As a Ranking's."""

    @property
    def cost(self) -> int:
        """What the call costs: the candidates that are retrieved and then ranked."""
        n = max(_examples(self.features), 0 if self.context_ids is None else int(self.context_ids.size), 1)
        return n * (self.candidates or max(100, 10 * self.k))

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long."""
        size = _values(self.features.values()) + (0 if self.exclude is None else int(self.exclude.ids.size))
        given = (bool(self.formula), self.context_ids is None, self.exclude is None)
        how = (self.index, self.tower, *given, len(self.attributes))
        return ("recommend", *how, size.bit_length(), self.k.bit_length(), self.candidates.bit_length())


@dataclass(frozen=True)
class Recommended:
    """Answer to a Recommendation; the neighbors' scores are the ranking tower's."""

    model: str
    version: int
    neighbors: Neighbors
    retrieval_scores: NDArray[np.float32]


@dataclass(frozen=True)
class Embedding:
    """A tower's result for n examples."""

    target: Target
    tower: str
    features: Mapping[str, Column]

    @property
    def cost(self) -> int:
        """What the call costs, in candidates ranked: about one for each example."""
        return _examples(self.features)

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long."""
        return "embed", self.tower, _values(self.features.values()).bit_length()


@dataclass(frozen=True)
class Embedded:
    """Answer to an Embedding: [n, dim] float32."""

    model: str
    version: int
    vectors: Vectors


@dataclass(frozen=True)
class Lookup:
    """The table rows of a feature's ids."""

    target: Target
    feature: str
    ids: Column

    @property
    def cost(self) -> int:
        """What the call costs, in candidates ranked: about one for some hundred rows."""
        return 1 + int(self.ids.values.size) // 256

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long."""
        return "lookup", self.feature, int(self.ids.values.size).bit_length()


@dataclass(frozen=True)
class LookedUp:
    """Answer to a Lookup: [n, dim] float32 and whether the table has each id."""

    model: str
    version: int
    table: str
    vectors: Vectors
    found: NDArray[np.bool_]


Request = TypeVar("Request", Retrieval, Ranking, Recommendation, Embedding, Lookup)


def _examples(columns: Mapping[str, Column] | None) -> int:
    """Returns how many examples packed columns hold at most, as far as is known without their features."""
    fewest: int | None = None
    for values, offsets, _ in (columns or {}).values():
        size = len(values) if offsets is None else len(offsets) - 1
        if fewest is None or size < fewest:
            fewest = size
    return max(1, fewest or 1)


def _values(columns: Iterable[Column]) -> int:
    return sum([len(column.values) for column in columns])
