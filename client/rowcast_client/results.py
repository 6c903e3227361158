"""Responses of a service, as frozen values with numpy arrays that are iterated like lists.

A response holds the results of n requests: `response[i]` has the result of request i, and iterating
that gives one neighbor or candidate after the other. For further computations, the packed arrays of
all n requests are available, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import value_of

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
_NO_IDS = np.empty(0, np.int64)
Record = TypeVar("Record")
RequestRecords = TypeVar("RequestRecords", bound="Records[Any]")


class Records(Sequence[Record]):
    """Arrays of equal lengths, read record by record; a slice is of the same type."""

    scores: NDArray[np.float32]
    record: ClassVar[Callable[..., Any]]
    """The class of a record. Its fields have the order of the arrays."""

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Returns one record, counted from the end if `index` is negative; of a slice, the same
        with fewer records.
        """
        # The arrays are the only attributes of a subclass, in the order of its record's fields.
        columns = [_pick(values, index) for values in vars(self).values()]
        if isinstance(index, slice):
            return type(self)(*columns)
        return self.record(*columns)


class RequestedValues(dict[str, Any]):
    """Values by the names of attributes or heads, as a request has asked for them."""

    def __missing__(self, name: str) -> NoReturn:
        names = ", ".join(map(repr, self)) or "none"
        raise KeyError(
            f"{name} was not requested; the response has {names}. Name it in attributes=[...] of "
            "the call, or a head in heads=[...]"
        )


def _pick(values: Any, index: int | slice) -> Any:
    """Returns the value of an array at an index, or the values of a slice; of a dict of arrays, a
    dict with the value or values of each; None if there is no array.
    """
    if isinstance(values, Mapping):
        return RequestedValues({name: _pick(column, index) for name, column in values.items()})
    if values is None:
        return None
    picked = values[index]
    # People print records and write them as JSON, which does not know NumPy's scalars.
    if isinstance(picked, np.generic):
        return picked.item()
    return picked


@dataclass(frozen=True, eq=False)
class BatchResult(Sequence[RequestRecords]):
    """The result of n requests; request i owns the records offsets[i]:offsets[i + 1].

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
    packed: RequestRecords
    offsets: NDArray[np.int64]
    coverage: float = field(default=1.0, kw_only=True)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> RequestRecords: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestRecords]: ...
    def __getitem__(self, index: int | slice) -> RequestRecords | list[RequestRecords]:
        """Returns the records of one request, counted from the end if `index` is negative; the list
        of them for a slice.
        """
        # A range resolves negative indexes, slices and steps, and raises IndexError beyond its end.
        requests = range(len(self))[index]
        if isinstance(requests, range):
            return [self[request] for request in requests]
        return self.packed[self.offsets[requests] : self.offsets[requests + 1]]


@dataclass(frozen=True)
class Neighbor:
    """A candidate returned with its score.

    Attributes:
      id: The ID of the candidate.
      score: The score, larger is better; from `recommend`, that of the ranking tower.
      attributes: The requested attributes by name: int, float, str, list of str, or None where the
        candidate has no value.
      retrieval_score: The score of the index, from `recommend`.
      source: The first source that has the candidate, from `recommend` with sources.
    """

    id: int | str
    score: float
    attributes: Mapping[str, Any] = field(default_factory=RequestedValues)
    retrieval_score: float | None = None
    source: str | None = None


@dataclass(frozen=True, eq=False)
class Neighbors(Records[Neighbor]):
    """Neighbors of one query, best first.

    Attributes:
      ids: [k] int64 or str, the IDs of the candidates.
      scores: [k] float32, the scores, larger is better.
      attributes: [k] values of each requested attribute, by its name.
      retrieval_scores: [k] float32, the scores of the index, from `recommend`.
      sources: [k] names of the first source that has each neighbor, from `recommend` with sources.
    """

    record = Neighbor
    ids: Ids
    scores: NDArray[np.float32]
    attributes: Mapping[str, list[Any]] = field(default_factory=RequestedValues)
    retrieval_scores: NDArray[np.float32] | None = None
    sources: Sequence[str] | None = None


@dataclass(frozen=True)
class Explanation:
    """How the neighbors of one query were found.

    Attributes:
      path: The kind of search: index, exact, or none where nothing could match.
      matches: The number of candidates that the filter, exclusions and the deny list leave.
      selectivity: Their share of the index.
      scored: The number of candidates whose exact score was computed.
      search_ms: The time of the search, in milliseconds.
      shortfall: The reason why there are fewer than k neighbors; empty: there are k.
      unmatched: Conditions of the filter, and values that they allow, that no candidate has.
    """

    path: str
    matches: int
    selectivity: float
    scored: int
    search_ms: float
    shortfall: str
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RetrievalResult(BatchResult[Neighbors]):
    """Neighbors of n queries.

    Attributes:
      searched: The number of candidates that were searched; 0 from `recommend`.
      explanations: The explanation of each query, if requested.
      not_found: By query, [m] the ids that do not exist, if `retrieve` skips them; else none.
      degraded: Whether `recommend` dropped diversity, or returned some or all neighbors unranked,
        in the order of retrieval.
      degraded_reason: The reason of that, in a sentence with the numbers.
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
      score: The score, larger is better.
      position: The position among the candidates as sent.
      heads: The other requested outputs, by name.
    """

    id: int | str | None
    score: float
    position: int
    heads: Mapping[str, float] = field(default_factory=RequestedValues)


@dataclass(frozen=True, eq=False)
class RankedCandidates(Records[RankedCandidate]):
    """Candidates of one context: in the order sent, or the k best, best first.

    Attributes:
      ids: [m] int64 or str, the IDs as sent; None if candidates were sent by features alone.
      scores: [m] float32, the scores, larger is better.
      positions: [m] int32, the positions among the candidates as sent.
      heads: [m] float32 of each other requested output, by its name.
    """

    record = RankedCandidate
    ids: Ids | None
    scores: NDArray[np.float32]
    positions: NDArray[np.int32]
    heads: Mapping[str, NDArray[np.float32]] = field(default_factory=RequestedValues)


@dataclass(frozen=True)
class FailedCandidate:
    """A candidate that the service could not score.

    Attributes:
      context: The position of its context.
      position: Its position among the candidates of the context, as sent.
      message: The reason, in a sentence.
    """

    context: int
    position: int
    message: str


@dataclass(frozen=True, eq=False)
class RankingResult(BatchResult[RankedCandidates]):
    """Ranked candidates of n contexts.

    Attributes:
      failed: Candidates without a score, which the records leave out.
      not_found: By context, [m] the ids that do not exist, if the request skips them; else none.
        The records leave them out.
    """

    failed: tuple[FailedCandidate, ...] = field(default=(), kw_only=True)
    not_found: tuple[Ids, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, eq=False)
class EmbeddingResult:
    """Outputs of a tower.

    Attributes:
      model: The name of the model that served the request.
      version: The version that served the request.
      vectors: [n, dim] float32.
      coverage: The fraction of the requested rows that were read; less than 1 if shards are lost.
    """

    model: str
    version: int
    vectors: NDArray[np.float32]
    coverage: float = field(default=1.0, kw_only=True)


@dataclass(frozen=True, eq=False)
class LookupResult:
    """Table rows of n ids.

    Attributes:
      model: The name of the model that served the request.
      version: The version that served the request.
      table: The name of the table.
      vectors: [n, dim] float32.
      found: [n] bool, whether the row of each id was read.
      lost: [n] bool, whether the table has each id, but no shard that holds its row responds; None:
        there is none.
      not_found: [m] the ids that the table does not have, as sent, if the request skips them; else
        none.
      coverage: The fraction of the requested rows that were read; less than 1 if shards are lost.
    """

    model: str
    version: int
    table: str
    vectors: NDArray[np.float32]
    found: NDArray[np.bool_]
    lost: NDArray[np.bool_] | None = field(default=None, kw_only=True)
    not_found: Ids = field(default_factory=lambda: np.empty(0, np.int64), kw_only=True)
    coverage: float = field(default=1.0, kw_only=True)


def unpack_retrieval(message: pb.RetrieveResponse | pb.RecommendResponse) -> RetrievalResult:
    """Reads the response of retrieve or recommend."""
    # Protobuf sends maps in any order; sorted, the same response always reads the same.
    attributes = {name: _attribute(values) for name, values in sorted(message.attributes.items())}

    # The two responses share most fields; each has some that the other does not know.
    retrieval_scores: NDArray[np.float32] | None = None
    sources: list[str] | None = None
    own_fields: dict[str, Any]
    if isinstance(message, pb.RecommendResponse):
        retrieval_scores = np.frombuffer(message.retrieval_scores, "<f4")
        if message.source_names:
            numbers = np.frombuffer(message.sources, "<i4").tolist()
            sources = [message.source_names[number] for number in numbers]
        own_fields = {"degraded": message.degraded, "degraded_reason": message.degraded_reason}
    else:
        own_fields = {"searched": message.searched}

    packed = Neighbors(
        ids=unpack_ids(message.ids),
        scores=np.frombuffer(message.scores, "<f4"),
        attributes=RequestedValues(attributes),
        retrieval_scores=retrieval_scores,
        sources=sources,
    )
    explanations = tuple(
        Explanation(**value_of(explanation)) for explanation in message.explanations
    )
    offsets = _offsets(message, packed)
    return RetrievalResult(
        message.model.name,
        message.model.version,
        packed,
        offsets,
        explanations=explanations,
        not_found=_not_found(message, len(offsets) - 1),
        coverage=_coverage(message),
        **own_fields,
    )


def unpack_ranking(message: pb.RankResponse) -> RankingResult:
    """Reads the response of rank."""
    ids = None
    if message.HasField("ids"):
        ids = unpack_ids(message.ids)
    heads = {name: np.frombuffer(values, "<f4") for name, values in sorted(message.heads.items())}
    packed = RankedCandidates(
        ids=ids,
        scores=np.frombuffer(message.scores, "<f4"),
        positions=np.frombuffer(message.positions, "<i4"),
        heads=RequestedValues(heads),
    )
    offsets = _offsets(message, packed)
    failed = tuple(
        FailedCandidate(candidate.context, candidate.position, candidate.message)
        for candidate in message.failed
    )
    return RankingResult(
        message.model.name,
        message.model.version,
        packed,
        offsets,
        coverage=_coverage(message),
        failed=failed,
        not_found=_not_found(message, len(offsets) - 1),
    )


def unpack_embedding(message: pb.EmbedResponse) -> EmbeddingResult:
    """Reads the response of embed."""
    return EmbeddingResult(
        message.model.name, message.model.version, _vectors(message), coverage=_coverage(message)
    )


def unpack_lookup(message: pb.LookupResponse) -> LookupResult:
    """Reads the response of lookup."""
    lost = None
    if message.lost:
        lost = np.frombuffer(message.lost, np.bool_)
    return LookupResult(
        message.model.name,
        message.model.version,
        message.table,
        _vectors(message),
        np.frombuffer(message.found, np.bool_),
        lost=lost,
        not_found=_column(message.not_found),
        coverage=_coverage(message),
    )


def _coverage(message: Any) -> float:
    # A service without shards, or with all of them, leaves the field out.
    if message.HasField("coverage"):
        return float(message.coverage)
    return 1.0


def unpack_ids(message: pb.Ids) -> Ids:
    """Reads ids as [m] int64, or [m] object holding str."""
    if message.HasField("strings"):
        return np.array(list(message.strings.values), object)
    return np.frombuffer(message.int64s, "<i8")


def _not_found(
    message: pb.RetrieveResponse | pb.RecommendResponse | pb.RankResponse, n: int
) -> tuple[Ids, ...]:
    """Returns the ids of each of n queries or contexts that do not exist."""
    # Recommendations leave out unknown ids of their sources without a report.
    if isinstance(message, pb.RecommendResponse):
        return ()
    if not message.HasField("not_found"):
        return (_NO_IDS,) * n
    ids = unpack_ids(message.not_found)
    # Without offsets, every query or context misses the same ids.
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
    """Returns the values of one attribute of m candidates; None where a candidate has no value."""
    values: list[Any]
    match message.WhichOneof("values"):
        case "strings":
            values = list(message.strings.values)
        case "lists":
            values = [list(strings.values) for strings in message.lists.values]
        case "float64s":
            values = np.frombuffer(message.float64s, "<f8").tolist()
        case "int64s":
            values = np.frombuffer(message.int64s, "<i8").tolist()
        case _:  # no candidate has a value
            values = [None] * len(message.nulls)
    # At these positions the packed values are fillers.
    for position in message.nulls:
        values[position] = None
    return values


def _vectors(message: pb.EmbedResponse | pb.LookupResponse) -> NDArray[np.float32]:
    # A dim that is not set reads as 0, to which NumPy cannot reshape.
    return np.frombuffer(message.vectors, "<f4").reshape(-1, max(message.dim, 1))


def _offsets(
    message: pb.RetrieveResponse | pb.RecommendResponse | pb.RankResponse, packed: Records[Any]
) -> NDArray[np.int64]:
    # Without offsets, all records are those of the only request.
    if not message.offsets:
        return np.array([0, len(packed)], np.int64)
    return np.frombuffer(message.offsets, "<i4").astype(np.int64)
