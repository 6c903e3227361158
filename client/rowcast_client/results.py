"""Answers of a service as frozen values with numpy arrays, iterated as people read them.

An answer holds those of n requests: `answer[i]` is request i's, and iterating it gives one neighbor or candidate after
the other. The packed arrays of all n are there beside it for those who compute on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from rowcast_client.stubs import embedding_service_pb2 as pb

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
Item = TypeVar("Item")


class Listed(Sequence[Item]):
    """A sequence defined by its length and its items."""

    def _item(self, place: int) -> Item:
        raise IndexError(place)

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...
    def __getitem__(self, place: int | slice) -> Item | list[Item]:
        """The item at a place, from the end if negative; the list of them for a slice."""
        if isinstance(place, slice):
            return [self._item(one) for one in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(f"{place} is outside the {len(self)} of this {type(self).__name__}")
        return self._item(place % len(self))

    def __iter__(self) -> Iterator[Item]:
        return (self._item(place) for place in range(len(self)))


@dataclass(frozen=True)
class Neighbor:
    """A candidate returned with its score.

    Attributes:
      id: the candidate's.
      score: larger is better; of `recommend`, the ranking tower's.
      attributes: the requested ones: int, float, str, list of str, or None where the candidate has none.
      retrieval_score: of `recommend`, the index' score.
    """

    id: int | str
    score: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    retrieval_score: float | None = None


@dataclass(frozen=True, eq=False)
class Neighbors(Listed[Neighbor]):
    """Neighbors of one query, best first.

    Attributes:
      ids: [k] int64 or str.
      scores: [k] float32.
      attributes: name -> [k] values.
      retrieval_scores: [k] float32, of `recommend`.
    """

    ids: Ids
    scores: NDArray[np.float32]
    attributes: Mapping[str, list[Any]] = field(default_factory=dict)
    retrieval_scores: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def _item(self, place: int) -> Neighbor:
        return Neighbor(
            id=_plain_id(self.ids[place]),
            score=float(self.scores[place]),
            attributes={name: values[place] for name, values in self.attributes.items()},
            retrieval_score=None if self.retrieval_scores is None else float(self.retrieval_scores[place]),
        )


@dataclass(frozen=True, eq=False)
class Retrieved(Listed[Neighbors]):
    """Neighbors of n queries; query i owns offsets[i]:offsets[i + 1] of the packed ones.

    Attributes:
      model: that answered.
      version: that answered.
      packed: the neighbors of all queries.
      offsets: [n + 1] int64.
      searched: candidates in the index; 0 from `recommend`.
    """

    model: str
    version: int
    packed: Neighbors
    offsets: NDArray[np.int64]
    searched: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _item(self, place: int) -> Neighbors:
        own = slice(int(self.offsets[place]), int(self.offsets[place + 1]))
        packed = self.packed
        return Neighbors(
            ids=packed.ids[own],
            scores=packed.scores[own],
            attributes={name: values[own] for name, values in packed.attributes.items()},
            retrieval_scores=None if packed.retrieval_scores is None else packed.retrieval_scores[own],
        )


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate with its score.

    Attributes:
      id: as sent; None if candidates were sent by features alone.
      score: larger is better.
      position: its place among the candidates as sent.
      heads: the other requested outputs.
    """

    id: int | str | None
    score: float
    position: int
    heads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RankedCandidates(Listed[RankedCandidate]):
    """Candidates of one context: in the order sent, or the k best, best first.

    Attributes:
      ids: [m] int64 or str; None if candidates were sent by features alone.
      scores: [m] float32.
      positions: [m] int32 among the candidates as sent.
      heads: name -> [m] float32.
    """

    ids: Ids | None
    scores: NDArray[np.float32]
    positions: NDArray[np.int32]
    heads: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scores)

    def _item(self, place: int) -> RankedCandidate:
        return RankedCandidate(
            id=None if self.ids is None else _plain_id(self.ids[place]),
            score=float(self.scores[place]),
            position=int(self.positions[place]),
            heads={name: float(values[place]) for name, values in self.heads.items()},
        )


@dataclass(frozen=True, eq=False)
class Ranked(Listed[RankedCandidates]):
    """Ranked candidates of n contexts; context i owns offsets[i]:offsets[i + 1] of the packed ones.

    Attributes:
      model: that answered.
      version: that answered.
      packed: the candidates of all contexts.
      offsets: [n + 1] int64.
    """

    model: str
    version: int
    packed: RankedCandidates
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _item(self, place: int) -> RankedCandidates:
        own = slice(int(self.offsets[place]), int(self.offsets[place + 1]))
        packed = self.packed
        return RankedCandidates(
            ids=None if packed.ids is None else packed.ids[own],
            scores=packed.scores[own],
            positions=packed.positions[own],
            heads={name: values[own] for name, values in packed.heads.items()},
        )


@dataclass(frozen=True, eq=False)
class Embedded:
    """Outputs of a tower: vectors [n, dim] float32."""

    model: str
    version: int
    vectors: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LookedUp:
    """Table rows of n ids: vectors [n, dim] float32, and found [n] bool: whether the table has each id."""

    model: str
    version: int
    table: str
    vectors: NDArray[np.float32]
    found: NDArray[np.bool_]


def unpack_retrieved(message: pb.RetrieveResponse) -> Retrieved:
    """Reads a RetrieveResponse."""
    return _retrieved(message.model, message.neighbors, None, message.searched)


def unpack_recommended(message: pb.RecommendResponse) -> Retrieved:
    """Reads a RecommendResponse."""
    return _retrieved(message.model, message.neighbors, np.frombuffer(message.retrieval_scores, "<f4"), 0)


def unpack_ranked(message: pb.RankResponse) -> Ranked:
    """Reads a RankResponse."""
    scores = np.frombuffer(message.scores, "<f4")
    packed = RankedCandidates(
        ids=unpack_ids(message.candidate_ids) if message.HasField("candidate_ids") else None,
        scores=scores,
        positions=np.frombuffer(message.positions, "<i4"),
        heads={name: np.frombuffer(values, "<f4") for name, values in sorted(message.heads.items())},
    )
    return Ranked(message.model.name, message.model.version, packed, _offsets(message.offsets, len(scores)))


def unpack_embedded(message: pb.EmbedResponse) -> Embedded:
    """Reads an EmbedResponse."""
    vectors = np.frombuffer(message.vectors, "<f4").reshape(-1, max(message.dim, 1))
    return Embedded(message.model.name, message.model.version, vectors)


def unpack_looked_up(message: pb.LookupResponse) -> LookedUp:
    """Reads a LookupResponse."""
    return LookedUp(
        message.model.name,
        message.model.version,
        message.table,
        np.frombuffer(message.vectors, "<f4").reshape(-1, max(message.dim, 1)),
        np.frombuffer(message.found, np.uint8).astype(np.bool_),
    )


def unpack_ids(message: pb.Ids) -> Ids:
    """Reads ids as [m] int64, or [m] object holding str."""
    if message.WhichOneof("kind") == "strings":
        return np.array(list(message.strings.values), object)
    return np.frombuffer(message.int64s, "<i8")


def unpack_attribute(message: pb.Attribute) -> list[Any]:
    """Reads one attribute of m candidates; None where a candidate has no value."""
    kind = message.WhichOneof("values")
    if kind == "strings":
        values: list[Any] = list(message.strings.values)
    elif kind == "lists":
        values = [list(one.values) for one in message.lists.values]
    elif kind == "float64s":
        values = np.frombuffer(message.float64s, "<f8").tolist()
    elif kind == "int64s":
        values = np.frombuffer(message.int64s, "<i8").tolist()
    else:  # no candidate has a value
        values = [None] * len(message.nulls)
    for place in message.nulls:
        values[place] = None
    return values


def _retrieved(
    model: pb.ModelSpec, neighbors: pb.Neighbors, retrieval_scores: NDArray[np.float32] | None, searched: int
) -> Retrieved:
    scores = np.frombuffer(neighbors.scores, "<f4")
    packed = Neighbors(
        ids=unpack_ids(neighbors.ids),
        scores=scores,
        attributes={name: unpack_attribute(values) for name, values in sorted(neighbors.attributes.items())},
        retrieval_scores=retrieval_scores,
    )
    return Retrieved(model.name, model.version, packed, _offsets(neighbors.offsets, len(scores)), searched)


def _offsets(packed: bytes, size: int) -> NDArray[np.int64]:
    offsets = np.frombuffer(packed, "<i4").astype(np.int64)
    return offsets if len(offsets) else np.array([0, size], np.int64)


def _plain_id(value: Any) -> int | str:
    return value if isinstance(value, str) else int(value)
