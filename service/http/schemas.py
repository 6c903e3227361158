"""The JSON of the five calls as pydantic models. They are for the OpenAPI document; `service.codec` reads the bodies,
and a test keeps both in agreement."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from service.errors import Code

Id = Annotated[int | str, Field(description="Integers beyond 2^53 travel as decimal strings.")]
Features = Annotated[
    dict[str, Any],
    Field(description="By feature name: a scalar; a list (bag, sequence, dense); or {ids, weights} of a weighted bag."),
]
ABSENT: Any = Field(default_factory=lambda: None)
"""The default of a field that may be left out but is not null."""


def example(**body: Any) -> ConfigDict:
    """Returns what shows an example of a body; names of features are those of a model."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class Schema(BaseModel):
    """A JSON object without further fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Query(Schema):
    """Features, a context_id, or both."""

    features: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    exclude: list[Id] = []
    """Candidates that are never returned."""


class RetrieveQuery(Query):
    """Features, a context_id, or both; else a vector; else the id of a candidate."""

    vector: list[float] = ABSENT
    id: Id = ABSENT


class RetrieveRequest(RetrieveQuery):
    """Nearest candidates for features, a vector, or a candidate's id."""

    model_config = example(k=3, features={"user_id": 7})

    k: int = 10
    attributes: list[str] = []
    index: str = ""
    exact: bool = False
    """Search exactly, whatever the index."""
    filter: dict[str, Any] = ABSENT
    """In the contract; answered UNIMPLEMENTED."""
    requests: list[RetrieveQuery] = ABSENT


class RankQuery(Schema):
    """A context by features, by id, or both, and candidates by id, by features, or both."""

    context: Features = ABSENT
    context_id: Id = ABSENT
    """Its stored features are used where none are sent."""
    candidates: list[Id] = ABSENT
    features: dict[str, list[Any]] = ABSENT
    """By feature name: one value for each candidate, in their order."""


class RankRequest(RankQuery):
    """Scores of candidates for a context."""

    model_config = example(context={"user_id": 7}, candidates=[1, 2, 3])

    heads: list[str] = []
    """Outputs returned beside the score."""
    k: int = 0
    """Only the k best, best first; 0: all, in the order sent."""
    tower: str = ""
    formula: str = ""
    """Computes the score from the outputs: click^0.7 * like^0.3. Empty: the model's own."""
    requests: list[RankQuery] = ABSENT


class RecommendRequest(Query):
    """Retrieve, then rank what was retrieved, with one version of the model."""

    model_config = example(k=3, features={"user_id": 7})

    k: int = 10
    candidates: int = 0
    """How many are retrieved and ranked; 0: max(100, 10 k)."""
    attributes: list[str] = []
    index: str = ""
    tower: str = ""
    formula: str = ""
    """As in rank."""
    requests: list[Query] = ABSENT


class EmbedQuery(Schema):
    """Features of one example."""

    features: Features = ABSENT


class EmbedRequest(EmbedQuery):
    """A tower's output for features."""

    model_config = example(tower="query", features={"user_id": 7})

    tower: str = ""
    requests: list[EmbedQuery] = ABSENT


class LookupRequest(Schema):
    """Rows of a feature's table by id."""

    model_config = example(feature="user_id", ids=[7])

    feature: str
    ids: list[Id]


class Answer(Schema):
    """The model and version that answered."""

    model: str
    version: int


class Neighbor(Schema):
    """A candidate that was found."""

    id: Id
    score: float
    attributes: dict[str, Any]


class RankedNeighbor(Neighbor):
    """A candidate that was retrieved and ranked."""

    retrieval_score: float


class RetrieveResult(Schema):
    """The neighbors of one query, best first."""

    neighbors: list[Neighbor] = ABSENT


class RetrieveResponse(RetrieveResult, Answer):
    """The result of one query, or the results of a list."""

    searched: int
    results: list[RetrieveResult] = ABSENT


class RankResult(Schema):
    """The scores of one context."""

    ids: list[Id] | None = None
    scores: list[float] = ABSENT
    positions: list[int] = ABSENT
    """The place of each answer among the candidates as sent."""
    heads: dict[str, list[float]] = ABSENT


class RankResponse(RankResult, Answer):
    """The result of one context, or the results of a list."""

    results: list[RankResult] = ABSENT


class RecommendResult(Schema):
    """The neighbors of one query, best first."""

    neighbors: list[RankedNeighbor] = ABSENT


class RecommendResponse(RecommendResult, Answer):
    """The result of one query, or the results of a list."""

    results: list[RecommendResult] = ABSENT


class EmbedResult(Schema):
    """The output of a tower."""

    vector: list[float] = ABSENT


class EmbedResponse(EmbedResult, Answer):
    """The result of one example, or the results of a list."""

    results: list[EmbedResult] = ABSENT


class LookupResponse(Answer):
    """The rows of the ids; zeros, or the unknown row, where they were not found."""

    table: str
    vectors: list[list[float]]
    found: list[bool]


class ErrorDetails(Schema):
    """What failed."""

    code: Code
    message: str
    request_id: str


class ErrorResponse(Schema):
    """The body of every failed request."""

    error: ErrorDetails


SCHEMAS: dict[str, tuple[type[Schema], type[Answer]]] = {
    "retrieve": (RetrieveRequest, RetrieveResponse),
    "rank": (RankRequest, RankResponse),
    "recommend": (RecommendRequest, RecommendResponse),
    "embed": (EmbedRequest, EmbedResponse),
    "lookup": (LookupRequest, LookupResponse),
}
"""Request and response by call."""
