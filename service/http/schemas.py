"""The JSON of the responses of the five calls as pydantic models, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from service.openapi import ABSENT, Id, Int64, ResponseSchema

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
SearchPath = TypeAliasType("SearchPath", Literal["index", "exact", "none"])


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


RESPONSES: dict[str, type[Response]] = {
    "retrieve": RetrieveResponse,
    "rank": RankResponse,
    "recommend": RecommendResponse,
    "embed": EmbedResponse,
    "lookup": LookupResponse,
}
"""The response of each call."""
