"""The messages of the five calls, each declared once: frozen classes that the engine computes with.

Every request holds n examples in packed columns; a single one is n = 1. What a field is in JSON, in
protobuf and in a batch follows from its form (`forms.py`), which its type implies or its annotation
states; what the document says of it stands below it. In protobuf, a message has the same fields,
and the numbers of `proto/` are its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.features.columns import Column
from service.config import ServiceSettings
from service.contract import forms
from service.contract.forms import Axis, IdLists
from service.contract.layouts import Body, layout_of
from service.errors import InvalidArgument

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
Offsets = NDArray[np.int64]
Vectors = NDArray[np.float32]
Columns = Mapping[str, Column]
EXAMPLE = Axis.EXAMPLE
ENTRY = Axis.ENTRY
K_DEFAULT = 10
_NAME_CHARS_MAX = 128
"""Maximum length of a name that is part of the kind of a request. Clients choose names, so that
longer ones would fill the memory of the estimates.
"""
_OFFSETS_SHOWN = 8
"""Maximum number of offsets that an error shows; of a longer list, it shows both ends."""
SOURCES_MAX = 16
"""Maximum number of sources of a recommendation."""
NEIGHBOR_COST = 8
"""Cost of encoding a neighbor, in numbers: its id and attributes are Python values."""

ContextIds = Annotated[Ids | None, forms.Ids(EXAMPLE, name="context_id")]
Context = forms.Columns(EXAMPLE)
IdsToAvoid = Annotated[IdLists | None, forms.Lists(EXAMPLE)]
IdsNotFound = Annotated[IdLists | None, forms.Lists(EXAMPLE)]
Int64 = Annotated[int, forms.Scalar(kind=np.int64)]
Scores = forms.Numbers(ENTRY)
Flags = forms.Numbers(EXAMPLE, kind=bool)
Tokens = Annotated[Ids | None, forms.Tokens()]
Bound = Annotated[int | float | None, forms.Number()]


@dataclass(frozen=True)
class Target:
    """Which model serves a request. Empty name: the only one. Neither version nor label: the
    current version.
    """

    model: str = ""
    version: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a version that bound the cost of its requests, whatever numbers they name.

    Attributes:
      candidates: The number of candidates of its largest corpus.
      dim: The smallest dim of its indexes.
    """

    candidates: int = 0
    dim: int = 1


class NotFoundRule(StrEnum):
    """What happens with an id that does not exist."""

    ERROR = "error"
    """The call fails. In a lookup, the unknown rule of the feature decides."""
    SKIP = "skip"
    """The call does without the id, and its response lists it."""


@dataclass(frozen=True)
class Request(ABC):
    """The base of the requests of all calls."""

    body: ClassVar[Body]

    target: Target

    def check(self, settings: ServiceSettings) -> None:  # noqa: B027 - most have no such rule
        """Checks the rules between fields, before the request is queued or merged with others."""

    @abstractmethod
    def cost(self, sizes: Sizes) -> int:
        """Returns what the call costs a version of these sizes, in candidates ranked; a query or
        example counts as one.
        """

    @property
    def holds_vectors(self) -> bool:
        """Whether the request sends vectors, whose numbers may be at fault if a result is not
        finite.
        """
        return False

    def without(self, inputs: Collection[str]) -> Self:
        """Returns the request without what it sends of these inputs."""
        changes: dict[str, Any] = {}
        for column_field in layout_of(type(self)).tables:
            columns = getattr(self, column_field) or {}
            if not columns.keys().isdisjoint(inputs):
                changes[column_field] = {
                    name: column for name, column in columns.items() if name not in inputs
                }
        return replace(self, **changes)

    @property
    def kind(self) -> Hashable:
        """Equal for requests that take about equally long: those with the same names and about as
        many values.
        """
        defaults = _defaults_of(type(self))
        kind: list[Hashable] = [type(self)]
        for name, value in vars(self).items():
            if value is not defaults[name] and name != "target":
                kind += name, name == "formula" or magnitude(value)
        return tuple(kind)


@dataclass(frozen=True)
class Result:
    """The model and version that served the request."""

    model: Annotated[str, forms.Head()]
    version: Annotated[int, forms.Head(kind=np.int64)]
    coverage: Annotated[float, forms.Head(kind=float)] = field(default=1.0, kw_only=True)
    """Where shards are lost: share of the rows that were read, as the others count as unknown, or
    of the candidates that were searched, whichever is smaller.
    """

    @property
    def encoding_cost(self) -> int:
        """The cost of encoding the result, in numbers; see `NEIGHBOR_COST`."""
        return 0


@dataclass(frozen=True)
class Condition:
    """What a candidate's values of one attribute must meet. A candidate without a value meets only
    deny and is_null.
    """

    field_of_values: ClassVar[str] = "allow"
    """The field that values alone are probably meant for, which is the remedy of their error."""

    allow: Tokens = None
    """One of its values is among these."""
    deny: Tokens = None
    """None of its values is among these; wins over allow."""
    ge: Bound = None
    gt: Bound = None
    le: Bound = None
    lt: Bound = None
    is_null: bool | None = None
    """Whether it has no value."""

    @property
    def tokens(self) -> list[Ids]:
        """Returns the lists of values that the condition names."""
        return [ids for ids in (self.allow, self.deny) if ids is not None]


@dataclass(frozen=True)
class Circle:
    """A circle on the earth. Candidates whose latitude or longitude is null do not lie in it."""

    latitude: float
    """Of the center, in degrees."""
    longitude: float
    """Of the center, from -180 to 180 degrees, as those of the candidates."""
    radius_m: float
    latitude_attribute: str = "latitude"
    """Attribute that holds the latitude of a candidate: `latitude` if it is absent."""
    longitude_attribute: str = "longitude"
    """Attribute that holds the longitude of a candidate: `longitude` if it is absent."""


@dataclass(frozen=True)
class Filter:
    """What candidates must meet: everything that is sent. Every other field is the condition on the
    attribute of that name.
    """

    example: ClassVar[str] = '{"genres": {"allow": ["Drama"]}}'
    """What the error of another value says to write."""
    limit: ClassVar[str] = "max_filter_terms"
    """The setting that limits its terms: each is a pass over the candidates."""
    counted: ClassVar[str] = "conditions, circles and nested filters"
    """What its terms are."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    all: tuple[Filter, ...] = ()
    """Each of these filters matches."""
    any: tuple[Filter, ...] = ()
    """At least one of these filters matches."""
    none: tuple[Filter, ...] = ()
    """None of these filters matches."""
    near: tuple[Circle, ...] = ()
    """The candidate lies in at least one of these circles."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def nested(self) -> tuple[Filter, ...]:
        """Returns the filters in this one."""
        return (*self.all, *self.any, *self.none)

    @property
    def terms(self) -> int:
        """Returns the number of its conditions, circles and nested filters, at all levels."""
        nested = [1 + nested_filter.terms for nested_filter in self.nested]
        return len(self.conditions) + len(self.near) + sum(nested)

    @property
    def tokens(self) -> list[Ids]:
        """Returns the lists of values in all of its conditions."""
        lists = [ids for condition in self.conditions.values() for ids in condition.tokens]
        for nested_filter in self.nested:
            lists += nested_filter.tokens
        return lists

    @property
    def size(self) -> int:
        """Returns how many terms and values it has."""
        return self.terms + sum([ids.size for ids in self.tokens])


@dataclass(frozen=True, kw_only=True)
class SelectionRequest(Request):
    """The options that retrievals and recommendations share: which candidates may be returned, how
    many, and in which order.
    """

    context: Annotated[Columns | None, Context] = None
    context_ids: ContextIds = None
    """Its stored features are used where none are sent."""
    exclude_ids: IdsToAvoid = None
    """Candidates that are never returned."""
    negative_ids: IdsToAvoid = None
    """Candidates that the neighbors must not be like. They are not returned either."""
    k: int = 0
    """How many neighbors are returned; absent: 10."""
    pool_size: int = 0
    """How many candidates are retrieved before they are ranked or reordered; absent or 0:
    max(100, 10 k).
    """
    filter: Filter | None = None
    crowding: Annotated[Mapping[str, int] | None, forms.Counts(limit="max_names")] = None
    diversity: float = 0.0
    """0 or absent: by score alone; up to 1: less and less like the neighbors before."""
    offset: int | None = None
    """Pages: the neighbors from this one on, of the list over a pool of `pool_size`, which must be
    sent.
    """
    min_score: float | None = None
    """Neighbors with lower scores are left out."""
    formula: str = ""
    """Gives the score: of outputs in recommend; of `score` and numeric attributes in retrieve."""
    attributes: tuple[str, ...] = ()
    """Attributes of the neighbors that the response has."""
    index: str = ""
    """May be left out if there is only one."""
    recall: float = 0.0
    """At least this recall, by the index's measured curve; absent or 0: as exported."""
    explain: bool = False
    """The response has an explanation of each query."""

    @property
    def retrieved_count(self) -> int:
        """The size of the pool: `pool_size`, or its default."""
        return self.pool_size or max(100, 10 * (self.k or K_DEFAULT))

    @property
    def selection_cost(self) -> int:
        """The cost of the filter and the exclusions: about one for some hundred of their values."""
        values = 0
        if self.filter is not None:
            values = self.filter.size
        for lists in (self.exclude_ids, self.negative_ids):
            if lists is not None:
                values += lists.ids.size
        return values // 256


@dataclass(frozen=True, kw_only=True)
class RetrievalRequest(SelectionRequest):
    """Nearest candidates for a context, for vectors, or for candidates."""

    body = Body(
        "retrieve",
        one_of=("context", "vectors", "ids"),
        part_doc="Exactly one of a context (features, a context_id, or both), vectors, and ids.",
        example={"k": 3, "context": {"user_id": 7, "hour": 20}},
    )

    # [n, dim]; a flat [n * dim] array is accepted too.
    vectors: Annotated[Vectors | None, forms.Vectors(ENTRY)] = None
    """Query vectors. Several are one query, for which each candidate has its best score."""
    ids: Annotated[Ids | None, forms.Ids(ENTRY)] = None
    """Candidates whose own vectors are the query. Several are one query, for which each candidate
    has its best score.
    """
    query_offsets: Annotated[Offsets | None, forms.Division(ENTRY, of_each=True)] = None
    exact: bool = False
    """Search exactly, whatever the index."""
    not_found: NotFoundRule = NotFoundRule.ERROR
    """What happens with ids that do not exist. error, or absent: the request fails; skip: it does
    without them, and the response lists them.
    """

    @property
    def holds_vectors(self) -> bool:
        """Whether queries are sent as vectors."""
        return self.vectors is not None

    def cost(self, sizes: Sizes) -> int:
        """About one for each query, and for some hundred values of its filter and exclusions."""
        if self.vectors is not None:
            # A flat array is accepted too, so that its first axis need not be that of the queries.
            queries = ceil_div(self.vectors.size, sizes.dim)
        else:
            queries = _examples(self.context, self.ids, self.context_ids)
        return queries + self.selection_cost


class SearchPath(StrEnum):
    """How a search was made."""

    INDEX = "index"
    EXACT = "exact"
    NONE = "none"
    """Nothing could match."""


class Explanation(NamedTuple):
    """How the neighbors of one query were found."""

    path: Annotated[str, forms.Word(words=SearchPath)]
    matches: Int64 = 0
    """Candidates that the filter, exclusions and the deny list leave."""
    selectivity: float = 0.0
    """Their share of the index."""
    scored: Int64 = 0
    """Candidates whose exact score was computed."""
    search_ms: float = 0.0
    shortfall: str = ""
    """Why there are fewer than k neighbors; empty: there are k."""
    unmatched: tuple[str, ...] = ()
    """Conditions of the filter, and values that they allow, that no candidate has; at most 20."""


@dataclass(frozen=True)
class RetrievalResult(Result):
    """Candidates for a query, best first: one element of each list per candidate."""

    ids: Annotated[Ids, forms.Ids(ENTRY)]
    # [m] float32.
    scores: Annotated[NDArray[np.float32], Scores]
    """Those of the ranking tower if the candidates were ranked, else those of the search."""
    # Query i owns offsets[i]:offsets[i + 1].
    offsets: Annotated[Offsets, forms.Division(ENTRY)]
    # [m] float32; None: the candidates were not ranked.
    retrieval_scores: Annotated[NDArray[np.float32] | None, Scores] = None
    """Those of the search."""
    # [m] int32, positions in `source_names`.
    sources: Annotated[NDArray[np.int32] | None, forms.Choices(ENTRY, kind=str)] = None
    """Of each candidate, the first source that has it. Absent if the request has no sources."""
    source_names: Annotated[tuple[str, ...], forms.Names(in_json=False)] = ()
    # [m] values by attribute: int, float, str, list[str] or None.
    attributes: Annotated[Mapping[str, list[Any]], forms.AttributeLists(ENTRY)] = field(
        default_factory=dict
    )
    explanations: Annotated[
        tuple[Explanation, ...],
        forms.Records(EXAMPLE, name="explanation", part_class=Explanation),
    ] = ()
    not_found: IdsNotFound = None
    """The ids of the query that do not exist, if the request has ids and skips such."""
    searched: Int64 = 0
    """The number of candidates that were searched: those in the corpus, less those of lost shards.
    """
    degraded: bool = False
    """Whether diversity, a source or the stage was left out, or some or all candidates are
    unranked, in the order of the stage or of retrieval.
    """
    degraded_reason: str = ""
    """A sentence with the numbers; empty: nothing was left out."""

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return NEIGHBOR_COST * (1 + len(self.attributes)) * int(self.ids.size)


@dataclass(frozen=True)
class RankingRequest(Request):
    """Scores of candidates for a context."""

    body = Body(
        "rank",
        part_doc="A context by features, by id, or both, and candidates by id, by features, or "
        "both.",
        example={"context": {"user_id": 7, "hour": 20}, "candidate_ids": [1, 2, 3]},
    )

    context: Annotated[Columns, Context] = field(default_factory=dict)
    candidate_ids: Annotated[Ids | None, forms.Ids(ENTRY)] = None
    candidate_features: Annotated[Columns, forms.Columns(ENTRY)] = field(default_factory=dict)
    # Without offsets, one context owns all candidates.
    offsets: Annotated[Offsets | None, forms.Division(ENTRY)] = None
    heads: tuple[str, ...] = ()
    """Outputs returned beside the score."""
    k: int = 0
    """Only the k best, best first; absent or 0: all, in the order sent."""
    tower: str = ""
    """May be left out if only one ranks."""
    formula: str = ""
    """Computes the score from the outputs: click^0.7 * like^0.3. Absent: the model's own."""
    context_ids: ContextIds = None
    """Its stored features are used where none are sent."""
    not_found: NotFoundRule = NotFoundRule.ERROR
    """What happens with candidate_ids that do not exist. error, or absent: the request fails; skip:
    they are left out, and the response lists them.
    """
    min_score: float | None = None
    """Candidates with lower scores are left out."""

    def check(self, settings: ServiceSettings) -> None:  # noqa: ARG002 - as all
        """See `Request`.

        Raises:
          InvalidArgument: The offsets do not divide the ids.
        """
        if self.offsets is not None and self.candidate_ids is not None:
            check_offsets(self.offsets, self.offsets.size - 1, self.candidate_ids.size, "offsets")

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - as all
        """One for each candidate."""
        return _examples(self.candidate_features, self.candidate_ids)


class FailedCandidate(NamedTuple):
    """A candidate that has no score."""

    # The position of its context.
    context: Annotated[int, forms.Scalar(kind=int, in_json=False)]
    position: int
    """Its position in the request."""
    message: str


@dataclass(frozen=True)
class RankingResult(Result):
    """Scores of candidates for a context: one element of each list per candidate."""

    ids: Annotated[Ids | None, forms.IdsOrNull(ENTRY)]
    """Null if the request has candidates by their features alone."""
    # [m] float32.
    scores: Annotated[NDArray[np.float32], Scores]
    # [m] int32.
    positions: Annotated[NDArray[np.int32], forms.Numbers(ENTRY, kind=int)]
    """The position of each candidate in the request."""
    # [m] float32 each.
    heads: Annotated[Mapping[str, NDArray[np.float32]], forms.NumbersByName(ENTRY)]
    offsets: Annotated[Offsets, forms.Division(ENTRY)]
    not_found: IdsNotFound = None
    """The candidate_ids that do not exist, if the request has candidate_ids and skips such. The
    other lists leave them out.
    """
    # A merged request has none: it fails, and its requests are computed alone.
    failed: Annotated[
        tuple[FailedCandidate, ...],
        forms.RecordLists(EXAMPLE, part_class=FailedCandidate, is_list=True),
    ] = ()
    """Candidates that are left out, because they read rows that are not finite. Absent if there is
    none.
    """

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        cost = int(self.scores.size) * (3 + len(self.heads))
        if self.not_found is not None:
            cost += int(self.not_found.ids.size)
        return cost


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where candidates of a recommendation come from: exactly one of an index, ids and a list."""

    example: ClassVar[str] = '{"index": "movies"}'
    """What the error of another value says to write."""

    name: str = ""
    """The name in the response; absent: the index's, the list's, or ids."""
    index: str | None = None
    """The nearest candidates by this index; empty: the only one."""
    ids: Annotated[IdLists | None, forms.Lists(EXAMPLE)] = None
    """These candidates: one list for all requests, or one list for each. Unknown ids are left out.
    """
    list: str | None = None
    """The first candidates of this list of the bundle, of the segment of each request; empty: the
    only one.
    """
    pool_size: int = 0
    """Maximum number of candidates for each request; absent or 0: the pool_size of the request, or
    all ids.
    """
    min_count: int = 0
    """Minimum number of recommendations of this source, if it has that many."""
    max_count: int = 0
    """Maximum number of recommendations of this source; absent or 0: any number."""
    fallback: bool = False
    """Used only for requests for which the other sources have fewer than k candidates."""

    def candidates(self, contexts: int, pool_size: int, size: int) -> int:
        """Returns how many candidates it has at most, in all contexts together.

        Args:
          contexts: The number of contexts.
          pool_size: The pool_size of the request.
          size: The number of candidates of the corpus, or of the list.
        """
        if self.ids is None:
            return contexts * min(max(0, self.pool_size) or pool_size, size)
        count = int(self.ids.ids.size)
        if self.ids.offsets is None:
            count *= contexts
        return count

    @property
    def magnitude(self) -> Hashable:
        """Equal for sources that take about equally long."""
        names = magnitude(self.index or ""), magnitude(self.list or "")
        return names, magnitude(self.ids), self.pool_size.bit_length(), self.fallback


@dataclass(frozen=True, kw_only=True)
class RecommendationRequest(SelectionRequest):
    """Retrieve, then rank what was retrieved, with one version of the model."""

    body = Body(
        "recommend",
        part_name="Query",
        part_doc="A context: features, a context_id, or both.",
        example={"k": 3, "context": {"user_id": 7, "hour": 20}},
    )

    context: Annotated[Columns, Context] = field(default_factory=dict)
    tower: str = ""
    """May be left out if only one ranks."""
    sources: Annotated[
        tuple[Source, ...], forms.Struct(part_class=Source, is_list=True, most=SOURCES_MAX)
    ] = ()
    """At most 16, whose candidates are merged and ranked together; absent: the candidates come
    from index.
    """
    keep: int = 0
    """Candidates that the stage before the ranking tower keeps; absent, or 0: as exported."""
    skip_stage: bool = False
    """Whether all candidates are ranked, without the stage before the ranking tower."""

    @property
    def kind(self) -> Hashable:
        """See `Request`."""
        return (super().kind, *[source.magnitude for source in self.sources])

    def cost(self, sizes: Sizes) -> int:
        """One for each candidate that is retrieved and ranked."""
        contexts = _examples(self.context, self.context_ids)
        sources = self.sources or (Source(),)
        size = sizes.candidates
        counts = [source.candidates(contexts, self.retrieved_count, size) for source in sources]
        candidates = sum(counts)
        return candidates + self.selection_cost


@dataclass(frozen=True)
class EmbeddingRequest(Request):
    """A tower's output for features."""

    body = Body(
        "embed",
        part_doc="Features of one example.",
        example={"tower": "query", "features": {"user_id": 7, "hour": 20}},
    )

    tower: str = ""
    """May be left out if there is only one."""
    features: Annotated[Columns, Context] = field(default_factory=dict)

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - as all
        """About one for each example."""
        return _examples(self.features)


@dataclass(frozen=True)
class EmbeddingResult(Result):
    """The output of a tower."""

    # [n, dim] float32.
    vectors: Annotated[Vectors, forms.OneVector(EXAMPLE, name="vector")]

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return int(self.vectors.size)


@dataclass(frozen=True)
class LookupRequest(Request):
    """Rows of a feature's table by id."""

    body = Body("lookup", list_name="", example={"feature": "user_id", "ids": [7]})

    feature: str
    ids: Annotated[Column, forms.Values(EXAMPLE)]
    not_found: NotFoundRule = NotFoundRule.ERROR
    """skip: the response lists the ids that the table does not have, and no feature rejects them.
    error, or absent: the unknown rule of the feature decides, which may reject them.
    """

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - as all
        """About one for some hundred rows."""
        return 1 + int(self.ids.values.size) // 256


@dataclass(frozen=True)
class LookupResult(Result):
    """The rows of the ids; zeros, or the unknown row, where they were not found."""

    table: str
    # [n, dim] float32.
    vectors: Annotated[Vectors, forms.Vectors(EXAMPLE)]
    # [n], as is `lost`.
    found: Annotated[NDArray[np.bool_], Flags]
    lost: Annotated[NDArray[np.bool_] | None, Flags] = None
    """Of each id that was not found, whether the table has it, but no shard that holds its row
    responds. Absent if there is none.
    """
    not_found: Annotated[IdLists | None, forms.MissingIds(EXAMPLE)] = None
    """The ids that the table does not have, if the request skips them."""

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return int(self.vectors.size)


def _examples(columns: Columns | None, *ids: Ids | None) -> int:
    """Returns how many examples ids, else packed columns hold at most, as far as is known without
    their features.
    """
    for id_array in ids:
        if id_array is not None:
            return max(1, id_array.size)
    if not columns:
        return 1
    sizes = []
    for values, offsets, _ in columns.values():
        if offsets is None:
            sizes.append(values.size)
        else:
            sizes.append(offsets.size - 1)
    # Columns with several values per example are larger than the number of examples, none smaller.
    return max(1, min(sizes))


def check_offsets(offsets: Offsets, n: int, total: int, field: str) -> None:
    """Rejects offsets that do not divide `total` values into n examples.

    Args:
      offsets: What was sent, of any shape.
      n: The number of examples.
      total: The number of values.
      field: The field, for the error.

    Raises:
      InvalidArgument: The offsets are not n + 1, do not begin with 0, do not end with `total`, or
        decrease.
    """
    if offsets.ndim != 1 or offsets.size != n + 1:
        expected = f"{n + 1}, one more than the queries or contexts of the request,"
        value = f"{offsets.size} values"
        raise InvalidArgument.of_field(field, value, expected, "has")
    # Most requests have one query or context, for which numpy takes longer than a list.
    if n == 1 and offsets.tolist() == [0, total]:
        return
    decrease_count = np.count_nonzero(offsets[1:] < offsets[:-1])
    if offsets[0] != 0 or offsets[-1] != total or decrease_count:
        expected = "a list that begins with 0, never decreases, and ends with the number of values"
        text = np.array2string(offsets, threshold=_OFFSETS_SHOWN, edgeitems=3)
        value = f"{text} for {total} values"
        raise InvalidArgument.of_field(field, value, expected)


@cache
def _defaults_of(request: type[Request]) -> dict[str, Any]:
    """Returns the default of each field; of one that must be given, a value that nobody gives."""
    return {entry.name: entry.default for entry in fields(request)}


def _count_values(columns: Mapping[str, Any]) -> int:
    """Returns how many values columns have; of a mapping to anything else, its size."""
    size = 0
    for column in columns.values():
        if type(column) is Column:
            size += column.values.size
        else:
            size += 1
    return size


def magnitude(value: Any) -> Hashable:
    """Returns how large the value of a field is, to a power of two; a switch as it is, and a name
    unless it is long: clients choose names, and kinds are kept.
    """
    match value:
        case str():
            return value if len(value) <= _NAME_CHARS_MAX else ""
        case bool() | None:
            return value
        case int():
            size = value
        case float():
            # A recall close to 1 can cost a hundred times what 0.9 does.
            return round(min(1.0, max(0.0, value)), 1)
        case IdLists():
            size = value.ids.size
        case Filter():
            size = value.size
        case Column():
            size = value.values.size
        case np.ndarray() | tuple():
            size = len(value)
        case dict():
            size = _count_values(value)
        case _:
            raise TypeError(value)
    return int(size).bit_length()


REQUESTS: Mapping[str, type[Request]] = {
    request.body.call: request
    for request in (
        RetrievalRequest,
        RankingRequest,
        RecommendationRequest,
        EmbeddingRequest,
        LookupRequest,
    )
}
"""The request of each call."""
RESULTS: Mapping[str, Any] = {
    "retrieve": RetrievalResult,
    "rank": RankingResult,
    "recommend": RetrievalResult,
    "embed": EmbeddingResult,
    "lookup": LookupResult,
}
"""The result of each call."""
# A field without a form is an error now, and not with the first request.
for _message in (*REQUESTS.values(), *RESULTS.values()):
    layout_of(_message)
