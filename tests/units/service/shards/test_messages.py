"""What a shard found is checked before it is used."""

from __future__ import annotations

import numpy as np
import pytest

from bundle.tables.shard_number import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.contract.messages import Condition, Filter
from service.engine.neighbors import Neighbors
from service.engine.retrieval.served_search import IndexSearch
from service.errors import Internal
from service.shards import messages

HELD = range(100, 200)
SHARD = ShardNumber(1, 2)


FILTER = Filter({"year": Condition(ge=2000)})


def read(
    positions: list[int],
    scores: list[float],
    counts: list[int],
    wanted: Filter | None,
) -> Neighbors:
    response = shard_pb.SearchResponse(
        positions=np.array(positions, "<u4").tobytes(),
        scores=np.array(scores, "<f4").tobytes(),
        counts=np.array(counts, "<u4").tobytes(),
    )
    search = IndexSearch(
        index="movies",
        vectors=np.zeros((2, 4), np.float32),
        k=3,
        exact=False,
        recall=0.0,
        filter=wanted,
        denied=np.empty(0, np.uint32),
        excluded=(),
        explain=False,
    )
    return messages.read_found(response, search, HELD, SHARD)


@pytest.mark.parametrize(
    ("positions", "scores", "counts", "message"),
    [
        ([100], [0.5], [1], "2 queries"),
        ([100, 101], [0.5], [1, 1], "bytes"),
        ([100, 101], [0.5, 0.5], [1, 0], "2 candidates"),
        ([100, 101, 102, 103], [0.5] * 4, [4, 0], "4 for one of them"),
        ([99], [0.5], [1, 0], "99 to 99"),
        ([200], [0.5], [0, 1], "200 to 200"),
        ([100], [float("nan")], [1, 0], "not finite"),
        ([100], [float("inf")], [1, 0], "not finite"),
        ([100, 101, 100], [0.5] * 3, [3, 0], "twice"),
        ([], [], [0, 0], "it holds more"),
        ([100, 101, 102, 100, 101], [0.5] * 5, [3, 2], "it holds more"),
    ],
)
def test_response_that_does_not_fit_the_search_is_a_failure_of_the_shard(
    positions: list[int], scores: list[float], counts: list[int], message: str
) -> None:
    with pytest.raises(Internal, match=message):
        read(positions, scores, counts, None if "more" in message else FILTER)
