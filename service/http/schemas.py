"""The JSON of the five calls as pydantic models. They are for the OpenAPI document; `service.codec`
reads the bodies, and a test keeps both in agreement."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.errors import Code

Id = Annotated[int | str, Field(description="Integers beyond 2^53 travel as decimal strings.")]
Features = Annotated[
    dict[str, Any],
    Field(
        description="By feature name: a scalar; a list (bag, sequence, dense); or {ids, weights} "
        "of a weighted bag."
    ),
]
ABSENT: Any = Field(default_factory=lambda: None)
"""The default of a field that may be left out but is not null."""


def example(**body: Any) -> ConfigDict:
    """Returns what shows an example of a body, for the model of the quick start."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class Schema(BaseModel):
    """A JSON object without further fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ResponseSchema(BaseModel):
    """A JSON object of a response. Later versions may add fields, which clients must ignore."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Query(Schema):
    """A context: features, a context_id, or both."""

    context: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    exclude_ids: list[Id] = []
    """Candidates that are never returned."""
    negative_ids: list[Id] = []
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
    latitude_attribute: str = "latitude"
    """Attribute that holds the latitude of a candidate."""
    longitude_attribute: str = "longitude"
    """Attribute that holds the longitude of a candidate."""


class Filter(BaseModel):
    """What candidates must meet: everything that is sent. Every other field is the condition on the
    attribute of that name.
    """

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    __pydantic_extra__: dict[str, Condition]

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

    k: int = 10
    pool_size: int = 0
    """How many candidates are retrieved before they are ranked or reordered; 0: max(100, 10 k)."""
    filter: Filter = ABSENT
    crowding: dict[str, int] = {}
    """Maximum number of neighbors with the same value of an attribute, by attribute. Candidates
    without a value are not limited.
    """
    diversity: float = 0.0
    """0: by score alone; up to 1: less and less like the neighbors before."""
    offset: int = ABSENT
    """Pages: the neighbors from this one on, of the list over a pool of `pool_size`, which must be
    sent.
    """
    min_score: float = ABSENT
    """Neighbors with lower scores are left out."""
    formula: str = ""
    """Gives the score: of outputs in recommend; of `score` and numeric attributes in retrieve."""
    attributes: list[str] = []
    index: str = ""
    recall: float = 0.0
    """At least this recall, by the index's measured curve; 0: as exported."""
    explain: bool = False
    """The response has an explanation of each query."""


NotFound = Literal["error", "skip"]
"""Values of an option that every call with ids has."""


class RetrieveRequest(RetrieveQuery, Selection):
    """Nearest candidates for a context, for vectors, or for candidates."""

    model_config = example(k=3, context={"user_id": 7, "hour": 20})

    exact: bool = False
    """Search exactly, whatever the index."""
    not_found: NotFound = "error"
    """What happens with ids that do not exist. error: the request fails; skip: it does without
    them, and the response lists them.
    """
    requests: list[RetrieveQuery] = ABSENT


class RankQuery(Schema):
    """A context by features, by id, or both, and candidates by id, by features, or both."""

    context: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    candidate_ids: list[Id] = ABSENT
    candidate_features: dict[str, list[Any]] = ABSENT
    """By feature name: one value for each candidate, in their order."""


class RankRequest(RankQuery):
    """Scores of candidates for a context."""

    model_config = example(context={"user_id": 7, "hour": 20}, candidate_ids=[1, 2, 3])

    heads: list[str] = []
    """Outputs returned beside the score."""
    k: int = 0
    """Only the k best, best first; 0: all, in the order sent."""
    tower: str = ""
    formula: str = ""
    """Computes the score from the outputs: click^0.7 * like^0.3. Empty: the model's own."""
    not_found: NotFound = "error"
    """What happens with candidate_ids that do not exist. error: the request fails; skip: they are
    left out, and the response lists them.
    """
    requests: list[RankQuery] = ABSENT


class RecommendRequest(Query, Selection):
    """Retrieve, then rank what was retrieved, with one version of the model."""

    model_config = example(k=3, context={"user_id": 7, "hour": 20})

    tower: str = ""
    requests: list[Query] = ABSENT


class EmbedQuery(Schema):
    """Features of one example."""

    features: Features = ABSENT


class EmbedRequest(EmbedQuery):
    """A tower's output for features."""

    model_config = example(tower="query", features={"user_id": 7, "hour": 20})

    tower: str = ""
    requests: list[EmbedQuery] = ABSENT


class LookupRequest(Schema):
    """Rows of a feature's table by id."""

    model_config = example(feature="user_id", ids=[7])

    feature: str
    ids: list[Id]
    not_found: NotFound = "error"
    """skip: the response lists the ids that the table does not have, and no feature rejects them.
    error: the unknown rule of the feature decides, which may reject them.
    """


class Response(ResponseSchema):
    """The model and version that served the request."""

    model: str
    version: int
    coverage: float = ABSENT
    """Where shards are lost: share of the rows that were read, as the others count as unknown, or
    of the candidates that were searched, whichever is smaller.
    """


class Explanation(ResponseSchema):
    """How the neighbors of one query were found."""

    path: Literal["index", "exact", "none"]
    matches: int
    """Candidates that the filter, exclusions and the deny list leave."""
    selectivity: float
    """Their share of the index."""
    scored: int
    """Candidates whose exact score was computed."""
    search_ms: float
    shortfall: str
    """Why there are fewer than k neighbors; empty: there are k."""


class Neighbors(ResponseSchema):
    """The neighbors of one query, best first: one element of each list per neighbor."""

    ids: list[Id] = ABSENT
    scores: list[float] = ABSENT
    attributes: dict[str, list[Any]] = ABSENT
    """By name; null where a neighbor has none."""
    explanation: Explanation = ABSENT


class RetrieveResult(Neighbors):
    """The neighbors of one query, best first: one element of each list per neighbor."""

    not_found: list[Id] = ABSENT
    """The ids of the query that do not exist, if the request has ids and skips such."""


class RetrieveResponse(RetrieveResult, Response):
    """The result of one query, or the results of a list."""

    searched: int
    results: list[RetrieveResult] = ABSENT


class RankResult(ResponseSchema):
    """The scores of one context."""

    ids: list[Id] | None = None
    scores: list[float] = ABSENT
    positions: list[int] = ABSENT
    """The position of each candidate in the request."""
    heads: dict[str, list[float]] = ABSENT
    not_found: list[Id] = ABSENT
    """The candidate_ids that do not exist, if the request has candidate_ids and skips such. The
    other lists leave them out.
    """


class RankResponse(RankResult, Response):
    """The result of one context, or the results of a list."""

    results: list[RankResult] = ABSENT


class RecommendResult(Neighbors):
    """The recommendations of one request, best first: one element of each list per candidate. The
    scores are those of the ranking tower.
    """

    retrieval_scores: list[float] = ABSENT


class RecommendResponse(RecommendResult, Response):
    """The result of one query, or the results of a list."""

    degraded: bool
    """Whether diversity was dropped, or some or all candidates are in the order of retrieval,
    unranked.
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


class VersionState(ResponseSchema):
    """A version under the root."""

    version: int
    state: Literal["loading", "available", "kept", "retiring", "failed"]
    problem: str
    """Why it failed; empty: it did not."""
    current: bool
    """Whether it serves requests that name no version."""
    labels: list[str]
    memory_bytes: int
    """Maximum memory in each process, without the tables; 0: it is not loaded."""


class ModelState(ResponseSchema):
    """A model and its versions."""

    name: str
    versions: list[VersionState]


class ModelsResponse(ResponseSchema):
    """The models of the service."""

    models: list[ModelState]


class ModelDetails(ResponseSchema):
    """A version of a model; the API reference describes the objects in the lists."""

    model: str
    version: int
    created: str
    current: bool
    labels: list[str]
    calls: list[dict[str, Any]]
    tables: list[dict[str, Any]]
    indexes: list[dict[str, Any]]
    corpora: list[dict[str, Any]]
    contexts: list[dict[str, Any]]
    readers: list[dict[str, Any]]
    towers: list[dict[str, Any]]


class FieldViolation(ResponseSchema):
    """What is wrong with one field of a request."""

    field: str = Field(
        description="The path of the field, such as `filter.year.ge`; or the name of a header, or "
        "of a part of the URL. `body`, `request` and `response` stand for a whole."
    )
    value: str = Field(description="What was sent, as a short text.")
    expected: str = Field(description="What was expected, as a phrase.")


class ErrorDetails(ResponseSchema):
    """What failed."""

    code: Code
    message: str
    violations: list[FieldViolation] = Field(
        [], description="What is wrong with which fields; left out if the request is not at fault."
    )
    retry_after_s: int | None = Field(
        None, description="The time after which to try again; sent with `OVERLOADED` only."
    )
    request_id: str


class ErrorResponse(ResponseSchema):
    """The body of every failed request."""

    error: ErrorDetails


SCHEMAS: dict[str, tuple[type[Schema], type[Response]]] = {
    "retrieve": (RetrieveRequest, RetrieveResponse),
    "rank": (RankRequest, RankResponse),
    "recommend": (RecommendRequest, RecommendResponse),
    "embed": (EmbedRequest, EmbedResponse),
    "lookup": (LookupRequest, LookupResponse),
}
"""Request and response by call."""
