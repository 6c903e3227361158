"""Responses of a service, as frozen values with numpy arrays that are iterated like lists.

A response holds the results of n requests: `response[i]` has the result of request i, and iterating
that gives one neighbor or candidate after the other. For further computations, the packed arrays of
all n requests are available, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from rowcast_client.descriptions import plain_message
from rowcast_client.stubs import embedding_service_pb2 as pb

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
_NO_IDS = np.empty(0, np.int64)
Record = TypeVar("Record")
OfRequest = TypeVar("OfRequest", bound="Records[Any]")


class Records(Sequence[Record]):
    """Arrays side by side, read record by record; a slice is of the same type."""

    scores: NDArray[np.float32]
    record: ClassVar[Callable[..., Any]]
    """Makes a record of one value of each array, in their order."""

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Any:
        """The record at a place, from the end if negative; of a slice, the same with
        fewer records.
        """
        picked = [_pick(values, place) for values in vars(self).values()]
        return type(self)(*picked) if isinstance(place, slice) else self.record(*picked)


def _pick(values: Any, place: int | slice) -> Any:
    """What arrays have at a place, as plain Python; or in a slice."""
    if isinstance(values, Mapping):
        return {name: _pick(each, place) for name, each in values.items()}
    picked = None if values is None else values[place]
    return picked.item() if isinstance(picked, np.generic) else picked


@dataclass(frozen=True, eq=False)
class Answer(Sequence[OfRequest]):
    """The records of n requests; those of request i are offsets[i]:offsets[i + 1] of all records.

    Attributes:
      model: The name of the model that served the request.
      version: The version that served the request.
      packed: The records of all requests.
      offsets: [n + 1] int64.
      coverage: The fraction of the requested rows that were read, or of the candidates that were
        searched, whichever is smaller; less than 1 if shards are lost.
    """

    model: str
    version: int
    packed: OfRequest
    offsets: NDArray[np.int64]
    coverage: float = field(default=1.0, kw_only=True)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> OfRequest: ...
    @overload
    def __getitem__(self, place: slice) -> list[OfRequest]: ...
    def __getitem__(self, place: int | slice) -> OfRequest | list[OfRequest]:
        """The records of one request, from the end if negative; the list of them for a slice."""
        chosen = range(len(self))[place]
        if isinstance(chosen, range):
            return [self[one] for one in chosen]
        return self.packed[self.offsets[chosen] : self.offsets[chosen + 1]]


@dataclass(frozen=True)
class Neighbor:
    """A candidate returned with its score.

    Attributes:
      id: the candidate's.
      score: larger is better; of `recommend`, the ranking tower's.
      attributes: the requested ones: int, float, str, list of str, or None where the candidate has
        none.
      retrieval_score: The score of the index, from `recommend`.
      source: The first source that has the candidate, from `recommend` with sources.
    """

    id: int | str
    score: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    retrieval_score: float | None = None
    source: str | None = None


@dataclass(frozen=True, eq=False)
class Neighbors(Records[Neighbor]):
    """Neighbors of one query, best first.

    Attributes:
      ids: [k] int64 or str.
      scores: [k] float32.
      attributes: name -> [k] values.
      retrieval_scores: [k] float32, of `recommend`.
      sources: The name of the first source that has each, [k], from `recommend` with sources.
    """

    record = Neighbor
    ids: Ids
    scores: NDArray[np.float32]
    attributes: Mapping[str, list[Any]] = field(default_factory=dict)
    retrieval_scores: NDArray[np.float32] | None = None
    sources: Sequence[str] | None = None


@dataclass(frozen=True)
class Explanation:
    """How the neighbors of one query were found.

    Attributes:
      path: index, exact, or none where nothing could match.
      matches: candidates that the filter, exclusions and the deny list leave.
      selectivity: their share of the index.
      scored: candidates whose exact score was computed.
      shortfall: why there are fewer than k neighbors; empty: there are k.
    """

    path: str
    matches: int
    selectivity: float
    scored: int
    search_ms: float
    shortfall: str


@dataclass(frozen=True, eq=False)
class Retrieved(Answer[Neighbors]):
    """Neighbors of n queries.

    Attributes:
      searched: candidates that were searched; 0 from `recommend`.
      explanations: The explanation of each query, if requested.
      not_found: By query, [m] the ids that do not exist, if `retrieve` skips them; else none.
      degraded: Whether `recommend` dropped diversity, or returned some or all neighbors unranked,
        in the order of retrieval.
      degraded_reason: why, in a sentence with the numbers.
    """

    searched: int = 0
    explanations: tuple[Explanation, ...] = ()
    not_found: tuple[Ids, ...] = ()
    degraded: bool = False
    degraded_reason: str = ""


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate with its score.

    Attributes:
      id: The ID as sent; None if candidates were sent by features alone.
      score: larger is better.
      position: its place among the candidates as sent.
      heads: the other requested outputs.
    """

    id: int | str | None
    score: float
    position: int
    heads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RankedCandidates(Records[RankedCandidate]):
    """Candidates of one context: in the order sent, or the k best, best first.

    Attributes:
      ids: [m] int64 or str; None if candidates were sent by features alone.
      scores: [m] float32.
      positions: [m] int32 among the candidates as sent.
      heads: name -> [m] float32.
    """

    record = RankedCandidate
    ids: Ids | None
    scores: NDArray[np.float32]
    positions: NDArray[np.int32]
    heads: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class FailedCandidate:
    """A candidate that the service could not score.

    Attributes:
      context: the position of its context.
      position: its position among the candidates of the context, as sent.
      message: why.
    """

    context: int
    position: int
    message: str


@dataclass(frozen=True, eq=False)
class Ranked(Answer[RankedCandidates]):
    """Ranked candidates of n contexts.

    Attributes:
      failed: candidates without a score, which the records leave out.
      not_found: By context, [m] the ids that do not exist, if the request skips them; else none.
        The records leave them out.
    """

    failed: tuple[FailedCandidate, ...] = field(default=(), kw_only=True)
    not_found: tuple[Ids, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, eq=False)
class Embedded:
    """Outputs of a tower: vectors [n, dim] float32."""

    model: str
    version: int
    vectors: NDArray[np.float32]
    coverage: float = field(default=1.0, kw_only=True)


@dataclass(frozen=True, eq=False)
class LookedUp:
    """Table rows of n ids.

    Attributes:
      vectors: [n, dim] float32.
      found: [n] bool: whether the row of each id was read.
      lost: [n] bool: whether the table has each id, but no shard that holds its row responds; None:
        there is none.
      not_found: [m] the ids that the table does not have, as sent, if the request skips them; else
        none.
    """

    model: str
    version: int
    table: str
    vectors: NDArray[np.float32]
    found: NDArray[np.bool_]
    lost: NDArray[np.bool_] | None = field(default=None, kw_only=True)
    not_found: Ids = field(default_factory=lambda: np.empty(0, np.int64), kw_only=True)
    coverage: float = field(default=1.0, kw_only=True)


def unpack_retrieved(message: pb.RetrieveResponse | pb.RecommendResponse) -> Retrieved:
    """Reads the response of retrieve or recommend."""
    recommended = isinstance(message, pb.RecommendResponse)
    attributes = {}
    if message.attributes:
        for name, values in sorted(message.attributes.items()):
            attributes[name] = _attribute(values)
    sources: list[str] | None = None
    if isinstance(message, pb.RecommendResponse) and message.source_names:
        numbers = np.frombuffer(message.sources, "<i4").tolist()
        sources = [message.source_names[number] for number in numbers]
    packed = Neighbors(
        ids=unpack_ids(message.ids),
        scores=np.frombuffer(message.scores, "<f4"),
        attributes=attributes,
        retrieval_scores=np.frombuffer(message.retrieval_scores, "<f4") if recommended else None,
        sources=sources,
    )
    explanations: tuple[Explanation, ...] = ()
    if message.explanations:
        explanations = tuple(Explanation(**plain_message(each)) for each in message.explanations)
    offsets = _offsets(message, packed)
    spec = message.model
    return Retrieved(
        spec.name,
        spec.version,
        packed,
        offsets,
        searched=0 if recommended else message.searched,
        explanations=explanations,
        not_found=_not_found(message, len(offsets) - 1),
        degraded=recommended and message.degraded,
        degraded_reason=message.degraded_reason if recommended else "",
        coverage=_coverage(message),
    )


def unpack_ranked(message: pb.RankResponse) -> Ranked:
    """Reads the response of rank."""
    packed = RankedCandidates(
        ids=unpack_ids(message.ids) if message.HasField("ids") else None,
        scores=np.frombuffer(message.scores, "<f4"),
        positions=np.frombuffer(message.positions, "<i4"),
        heads={
            name: np.frombuffer(values, "<f4") for name, values in sorted(message.heads.items())
        },
    )
    offsets = _offsets(message, packed)
    failed = tuple(
        FailedCandidate(each.context, each.position, each.message) for each in message.failed
    )
    return Ranked(
        message.model.name,
        message.model.version,
        packed,
        offsets,
        coverage=_coverage(message),
        failed=failed,
        not_found=_not_found(message, len(offsets) - 1),
    )


def unpack_embedded(message: pb.EmbedResponse) -> Embedded:
    """Reads the response of embed."""
    return Embedded(
        message.model.name, message.model.version, _vectors(message), coverage=_coverage(message)
    )


def unpack_looked_up(message: pb.LookupResponse) -> LookedUp:
    """Reads the response of lookup."""
    found = np.frombuffer(message.found, np.bool_)
    response = (message.model.name, message.model.version, message.table, _vectors(message), found)
    lost = np.frombuffer(message.lost, np.bool_) if message.lost else None
    not_found = _column(message.not_found)
    return LookedUp(*response, lost=lost, not_found=not_found, coverage=_coverage(message))


def _coverage(message: Any) -> float:
    return float(message.coverage) if message.HasField("coverage") else 1.0


def unpack_ids(message: pb.Ids) -> Ids:
    """Reads ids as [m] int64, or [m] object holding str."""
    if message.HasField("strings"):
        return np.array(list(message.strings.values), object)
    return np.frombuffer(message.int64s, "<i8")


def _not_found(
    message: pb.RetrieveResponse | pb.RecommendResponse | pb.RankResponse, n: int
) -> tuple[Ids, ...]:
    """Returns the ids of each of n queries or contexts that do not exist."""
    if isinstance(message, pb.RecommendResponse):
        return ()
    if not message.HasField("not_found"):
        return (_NO_IDS,) * n
    ids = unpack_ids(message.not_found)
    if not message.not_found_offsets:
        return (ids,) * n
    offsets = np.frombuffer(message.not_found_offsets, "<i4")
    return tuple(np.split(ids, offsets[1:-1]))


def _column(message: pb.Column) -> NDArray[Any]:
    """Reads the values of a column, [m] int64, float32 or str."""
    if message.HasField("strings"):
        return np.array(list(message.strings.values), object)
    if message.HasField("float32s"):
        return np.frombuffer(message.float32s, "<f4")
    return np.frombuffer(message.int64s, "<i8")


def _attribute(message: pb.Attribute) -> list[Any]:
    """One attribute of m candidates; None where a candidate has no value."""
    values: list[Any]
    match message.WhichOneof("values"):
        case "strings":
            values = list(message.strings.values)
        case "lists":
            values = [list(one.values) for one in message.lists.values]
        case "float64s":
            values = np.frombuffer(message.float64s, "<f8").tolist()
        case "int64s":
            values = np.frombuffer(message.int64s, "<i8").tolist()
        case _:  # no candidate has a value
            values = [None] * len(message.nulls)
    for place in message.nulls:
        values[place] = None
    return values


def _vectors(message: pb.EmbedResponse | pb.LookupResponse) -> NDArray[np.float32]:
    return np.frombuffer(message.vectors, "<f4").reshape(-1, max(message.dim, 1))


def _offsets(
    message: pb.RetrieveResponse | pb.RecommendResponse | pb.RankResponse, packed: Records[Any]
) -> NDArray[np.int64]:
    if not message.offsets:
        return np.array([0, len(packed)], np.int64)
    return np.frombuffer(message.offsets, "<i4").astype(np.int64)
