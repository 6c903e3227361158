"""Calls by the client that openapi-python-client generates; `mypy --strict` checks them."""

import sys

from rowcast_api import Client
from rowcast_api.api.calls import rank, retrieve
from rowcast_api.api.models import get_model, list_models
from rowcast_api.models import (
    Code,
    Condition,
    ErrorResponse,
    Features,
    Filter,
    ModelDetails,
    NotFoundRule,
    RankRequest,
    RankResponse,
    RetrieveRequest,
    RetrieveResponse,
)

MODEL = "movielens"


def main() -> None:
    """Ranks, retrieves, reads a model, and reads errors."""
    client = Client(base_url=sys.argv[1])
    viewer = Features.from_dict({"user_id": 7, "history": [1, 5, 12, 31], "hour": 20})

    ranking = rank.sync(
        MODEL,
        client=client,
        body=RankRequest(
            context=viewer,
            candidate_ids=[47, "50", 110, 999_999],
            k=2,
            not_found=NotFoundRule.SKIP,
        ),
    )
    assert isinstance(ranking, RankResponse), ranking
    assert isinstance(ranking.scores, list)
    assert isinstance(ranking.ids, list)
    assert len(ranking.scores) == len(ranking.ids) == 2
    assert ranking.not_found == [999_999]
    print("ranked", dict(zip(ranking.ids, ranking.scores, strict=True)))

    dramas = Filter()
    dramas["genres"] = Condition(allow=["Drama"])
    dramas["year"] = Condition(ge=1990)
    retrieval = retrieve.sync(
        MODEL,
        client=client,
        body=RetrieveRequest(
            context=viewer,
            k=3,
            filter_=Filter(all_=[dramas]),
            attributes=["title", "genres"],
            explain=True,
        ),
        x_request_id="generated-python-client",
    )
    assert isinstance(retrieval, RetrieveResponse), retrieval
    assert retrieval.attributes
    assert retrieval.explanation
    assert all("Drama" in genres for genres in retrieval.attributes["genres"])
    print("retrieved", retrieval.attributes["title"], retrieval.explanation.path)

    details = get_model.sync(MODEL, client=client)
    assert isinstance(details, ModelDetails), details
    print("tables", {table.name: table.rows for table in details.tables})
    print("models", list_models.sync(client=client))

    unknown = rank.sync("nowhere", client=client, body=RankRequest(context=viewer))
    assert isinstance(unknown, ErrorResponse), unknown
    assert unknown.error.code == Code.NOT_FOUND
    print(unknown.error.code, unknown.error.message)


if __name__ == "__main__":
    main()
