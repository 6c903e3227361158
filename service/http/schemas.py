"""The JSON of the five calls as pydantic models. They are for the OpenAPI document; `service.codec`
reads the bodies, and a test keeps both in agreement."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from service.openapi import ABSENT, Features, Id, Int64, ResponseSchema, Schema, example

CandidateFeatures = TypeAliasType(
    "CandidateFeatures",
    Annotated[
        dict[str, list[Any]],
        Field(description="By feature name: one value for each candidate, in their order."),
    ],
)
Crowding = TypeAliasType(
    "Crowding",
    Annotated[
        dict[str, int],
        Field(
            description="Maximum number of neighbors with the same value of an attribute, by "
            "attribute. Candidates without a value are not limited."
        ),
    ],
)
AttributeColumns = TypeAliasType(
    "AttributeColumns",
    Annotated[
        dict[str, list[Any]],
        Field(description="By name: one value per neighbor, null where a neighbor has none."),
    ],
)
Heads = TypeAliasType(
    "Heads",
    Annotated[dict[str, list[float]], Field(description="By output: one value per candidate.")],
)
NotFoundRule = TypeAliasType("NotFoundRule", Literal["error", "skip"])
SearchPath = TypeAliasType("SearchPath", Literal["index", "exact", "none"])


class Query(Schema):
    """A context: features, a context_id, or both."""

    context: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    exclude_ids: list[Id] = ABSENT
    """Candidates that are never returned."""
    negative_ids: list[Id] = ABSENT
    """Candidates that the neighbors must not be like. They are not returned either."""


class RetrieveQuery(Query):
    """Exactly one of a context (features, a context_id, or both), vectors, and ids."""

    vectors: list[list[float]] = ABSENT
    """Query vectors. Several are one query, for which each candidate has its best score."""
    ids: list[Id] = ABSENT
    """Candidates whose own vectors are the query. Several are one query, for which each candidate
    has its best score.
    """


class Condition(Schema):
    """What a candidate's values of one attribute must meet. A candidate without a value meets only
    deny and is_null.
    """

    allow: list[Id | bool] = ABSENT
    """One of its values is among these."""
    deny: list[Id | bool] = ABSENT
    """None of its values is among these; wins over allow."""
    ge: float = ABSENT
    gt: float = ABSENT
    le: float = ABSENT
    lt: float = ABSENT
    is_null: bool = ABSENT
    """Whether it has no value."""


class Circle(Schema):
    """A circle on the earth. Candidates whose latitude or longitude is null do not lie in it."""

    latitude: float
    """Of the center, in degrees."""
    longitude: float
    """Of the center, from -180 to 180 degrees, as those of the candidates."""
    radius_m: float
    latitude_attribute: str = ABSENT
    """Attribute that holds the latitude of a candidate: `latitude` if it is absent."""
    longitude_attribute: str = ABSENT
    """Attribute that holds the longitude of a candidate: `longitude` if it is absent."""


class Filter(BaseModel):
    """What candidates must meet: everything that is sent. Every other field is the condition on the
    attribute of that name.
    """

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    # In TypeScript, the type of the other fields has to include those of the named ones.
    __pydantic_extra__: dict[str, Condition | list[Filter] | list[Circle]]

    all: list[Filter] = ABSENT
    """Each of these filters matches."""
    any: list[Filter] = ABSENT
    """At least one of these filters matches."""
    none: list[Filter] = ABSENT
    """None of these filters matches."""
    near: list[Circle] = ABSENT
    """The candidate lies in at least one of these circles."""


class Selection(Schema):
    """Which candidates may be returned, how many, and in which order."""

    k: int = ABSENT
    """How many neighbors are returned; absent: 10."""
    pool_size: int = ABSENT
    """How many candidates are retrieved before they are ranked or reordered; absent or 0:
    max(100, 10 k).
    """
    filter: Filter = ABSENT
    crowding: Crowding = ABSENT
    diversity: float = ABSENT
    """0 or absent: by score alone; up to 1: less and less like the neighbors before."""
    offset: int = ABSENT
    """Pages: the neighbors from this one on, of the list over a pool of `pool_size`, which must be
    sent.
    """
    min_score: float = ABSENT
    """Neighbors with lower scores are left out."""
    formula: str = ABSENT
    """Gives the score: of outputs in recommend; of `score` and numeric attributes in retrieve."""
    attributes: list[str] = ABSENT
    """Attributes of the neighbors that the response has."""
    index: str = ABSENT
    """May be left out if there is only one."""
    recall: float = ABSENT
    """At least this recall, by the index's measured curve; absent or 0: as exported."""
    explain: bool = ABSENT
    """The response has an explanation of each query."""


class RetrieveRequest(RetrieveQuery, Selection):
    """Nearest candidates for a context, for vectors, or for candidates."""

    model_config = example(k=3, context={"user_id": 7, "hour": 20})

    exact: bool = ABSENT
    """Search exactly, whatever the index."""
    not_found: NotFoundRule = ABSENT
    """What happens with ids that do not exist. error, or absent: the request fails; skip: it does
    without them, and the response lists them.
    """
    requests: list[RetrieveQuery] = ABSENT


class RankQuery(Schema):
    """A context by features, by id, or both, and candidates by id, by features, or both."""

    context: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    candidate_ids: list[Id] = ABSENT
    candidate_features: CandidateFeatures = ABSENT


class RankRequest(RankQuery):
    """Scores of candidates for a context."""

    model_config = example(context={"user_id": 7, "hour": 20}, candidate_ids=[1, 2, 3])

    heads: list[str] = ABSENT
    """Outputs returned beside the score."""
    k: int = ABSENT
    """Only the k best, best first; absent or 0: all, in the order sent."""
    tower: str = ABSENT
    """May be left out if only one ranks."""
    formula: str = ABSENT
    """Computes the score from the outputs: click^0.7 * like^0.3. Absent: the model's own."""
    not_found: NotFoundRule = ABSENT
    """What happens with candidate_ids that do not exist. error, or absent: the request fails; skip:
    they are left out, and the response lists them.
    """
    requests: list[RankQuery] = ABSENT


IdsOfSource = list[Id | list[Id]]
"""Named outside of the class, whose field `list` hides the type."""


class Source(Schema):
    """Where candidates of a recommendation come from: exactly one of an index, ids and a list."""

    name: str = ABSENT
    """The name in the response; absent: the index's, the list's, or ids."""
    index: str = ABSENT
    """The nearest candidates by this index; empty: the only one."""
    ids: IdsOfSource = ABSENT
    """These candidates: one list for all requests, or one list for each. Unknown ids are left out.
    """
    list: str = ABSENT
    """The first candidates of this list of the bundle, of the segment of each request; empty: the
    only one.
    """
    pool_size: int = ABSENT
    """Maximum number of candidates for each request; absent or 0: the pool_size of the request, or
    all ids.
    """
    min_count: int = ABSENT
    """Minimum number of recommendations of this source, if it has that many."""
    max_count: int = ABSENT
    """Maximum number of recommendations of this source; absent or 0: any number."""
    fallback: bool = ABSENT
    """Used only for requests for which the other sources have fewer than k candidates."""


class RecommendRequest(Query, Selection):
    """Retrieve, then rank what was retrieved, with one version of the model."""

    model_config = example(k=3, context={"user_id": 7, "hour": 20})

    tower: str = ABSENT
    """May be left out if only one ranks."""
    sources: list[Source] = ABSENT
    """At most 16, whose candidates are merged and ranked together; absent: the candidates come
    from index.
    """
    keep: int = ABSENT
    """Candidates that the stage before the ranking tower keeps; absent, or 0: as exported."""
    skip_stage: bool = ABSENT
    """Whether all candidates are ranked, without the stage before the ranking tower."""
    requests: list[Query] = ABSENT


class EmbedQuery(Schema):
    """Features of one example."""

    features: Features = ABSENT


class EmbedRequest(EmbedQuery):
    """A tower's output for features."""

    model_config = example(tower="query", features={"user_id": 7, "hour": 20})

    tower: str = ABSENT
    """May be left out if there is only one."""
    requests: list[EmbedQuery] = ABSENT


class LookupRequest(Schema):
    """Rows of a feature's table by id."""

    model_config = example(feature="user_id", ids=[7])

    feature: str
    ids: list[Id]
    not_found: NotFoundRule = ABSENT
    """skip: the response lists the ids that the table does not have, and no feature rejects them.
    error, or absent: the unknown rule of the feature decides, which may reject them.
    """


class Response(ResponseSchema):
    """The model and version that served the request."""

    model: str
    version: Int64
    coverage: float = ABSENT
    """Where shards are lost: share of the rows that were read, as the others count as unknown, or
    of the candidates that were searched, whichever is smaller.
    """


class Explanation(ResponseSchema):
    """How the neighbors of one query were found."""

    path: SearchPath
    matches: Int64
    """Candidates that the filter, exclusions and the deny list leave."""
    selectivity: float
    """Their share of the index."""
    scored: Int64
    """Candidates whose exact score was computed."""
    search_ms: float
    shortfall: str
    """Why there are fewer than k neighbors; empty: there are k."""


class Neighbors(ResponseSchema):
    """The neighbors of one query, best first: one element of each list per neighbor."""

    ids: list[Id] = ABSENT
    scores: list[float] = ABSENT
    attributes: AttributeColumns = ABSENT
    explanation: Explanation = ABSENT


class RetrieveResult(Neighbors):
    """The neighbors of one query, best first: one element of each list per neighbor."""

    not_found: list[Id] = ABSENT
    """The ids of the query that do not exist, if the request has ids and skips such."""


class RetrieveResponse(RetrieveResult, Response):
    """The result of one query, or the results of a list."""

    searched: Int64
    """The number of candidates in the index."""
    results: list[RetrieveResult] = ABSENT


class FailedCandidate(ResponseSchema):
    """A candidate that has no score."""

    position: int
    """Its position in the request."""
    message: str


class RankResult(ResponseSchema):
    """The scores of one context."""

    ids: list[Id] | None = ABSENT
    """Null if the request has candidates by their features alone."""
    scores: list[float] = ABSENT
    positions: list[int] = ABSENT
    """The position of each candidate in the request."""
    heads: Heads = ABSENT
    not_found: list[Id] = ABSENT
    """The candidate_ids that do not exist, if the request has candidate_ids and skips such. The
    other lists leave them out.
    """
    failed: list[FailedCandidate] = ABSENT
    """Candidates that are left out, because they read rows that are not finite. Absent if there is
    none.
    """


class RankResponse(RankResult, Response):
    """The result of one context, or the results of a list."""

    results: list[RankResult] = ABSENT


class RecommendResult(Neighbors):
    """The recommendations of one request, best first: one element of each list per candidate. The
    scores are those of the ranking tower.
    """

    retrieval_scores: list[float] = ABSENT
    sources: list[str] = ABSENT
    """Of each candidate, the first source that has it. Absent if the request has no sources."""


class RecommendResponse(RecommendResult, Response):
    """The result of one query, or the results of a list."""

    degraded: bool
    """Whether diversity, a source or the stage was left out, or some or all candidates are
    unranked, in the order of the stage or of retrieval.
    """
    degraded_reason: str
    """A sentence with the numbers; empty: nothing was left out."""
    results: list[RecommendResult] = ABSENT


class EmbedResult(ResponseSchema):
    """The output of a tower."""

    vector: list[float] = ABSENT


class EmbedResponse(EmbedResult, Response):
    """The result of one example, or the results of a list."""

    results: list[EmbedResult] = ABSENT


class LookupResponse(Response):
    """The rows of the ids; zeros, or the unknown row, where they were not found."""

    table: str
    vectors: list[list[float]]
    found: list[bool]
    lost: list[bool] = ABSENT
    """Of each id that was not found, whether the table has it, but no shard that holds its row
    responds. Absent if there is none.
    """
    not_found: list[Id] = ABSENT
    """The ids that the table does not have, if the request skips them."""


SCHEMAS: dict[str, tuple[type[Schema], type[Response]]] = {
    "retrieve": (RetrieveRequest, RetrieveResponse),
    "rank": (RankRequest, RankResponse),
    "recommend": (RecommendRequest, RecommendResponse),
    "embed": (EmbedRequest, EmbedResponse),
    "lookup": (LookupRequest, LookupResponse),
}
"""Request and response by call."""
