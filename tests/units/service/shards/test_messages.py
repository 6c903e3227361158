"""What a shard found is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from bundle.tables.sharding import ShardNumber
from service.codec import protobuf
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.calls import Circle, Condition, Filter
from service.engine.retrieval.search import Neighbors
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Internal, TooLarge
from service.shards import messages
from tests.units.client.plain import plain

HELD = range(100, 200)
SHARD = ShardNumber(1, 2)


FILTER = Filter({"year": Condition(ge=2000)})


def read(
    positions: list[int],
    scores: list[float],
    counts: list[int],
    wanted: Filter | None = FILTER,
    denied: Iterable[int] = (),
    excluded: tuple[list[int], ...] = (),
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
        denied=np.array([*denied], np.uint32),
        excluded=tuple([np.array(positions, np.uint32) for positions in excluded]),
        explain=False,
    )
    return messages.read_found(response, search, HELD, SHARD)


def test_filter_reaches_the_shard_as_it_was_sent() -> None:
    late = Filter({"year": Condition(ge=2000, lt=2010.5), "studio": Condition(is_null=False)})
    horror = Filter({"genres": Condition(allow=np.array(["horror"], object))})
    berlin = Circle(52.5, 13.4, 5000, "lat", "lon")
    sent_filter = Filter(any=(late, Filter(near=(berlin,), none=(horror,))), all=(Filter(),))
    message = protobuf.filter_message(sent_filter)
    assert plain(protobuf.read_filter(message, ServiceSettings(root=Path.cwd()))) == plain(
        sent_filter
    )


@pytest.mark.parametrize(
    ("sent_filter", "message"),
    [
        (
            Filter(any=(Filter(), Filter({f"a{n}": Condition(is_null=True) for n in range(99)}))),
            r"filter has 101 conditions, circles and nested filters; at most 100 are accepted",
        ),
        (
            reduce(lambda inner, _: Filter(all=(inner,)), range(8), Filter()),
            r"filter(\.all\[0\]){8} is a filter at level 9; at most 8 are accepted",
        ),
    ],
)
def test_filter_beyond_a_limit_is_rejected_with_the_field(
    sent_filter: Filter, message: str
) -> None:
    with pytest.raises(TooLarge, match=message):
        protobuf.read_filter(protobuf.filter_message(sent_filter), ServiceSettings(root=Path.cwd()))


def test_candidates_of_each_query_are_read() -> None:
    neighbors = read([100, 199, 100], [0.5, 0.25, -1.0], [2, 1])
    assert neighbors.positions.tolist() == [100, 199, 100]  # two queries can find the same one
    assert neighbors.offsets.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("positions", "scores", "counts", "message"),
    [
        ([100], [0.5], [1], "4, 4, 4. bytes for a search of 2 queries"),
        ([100, 101], [0.5], [1, 1], "bytes for a search"),
        ([100, 101], [0.5, 0.5], [1, 0], "2 candidates for 2 queries"),
        ([100, 101, 102, 103], [0.5] * 4, [4, 0], "4 for one of them"),
        ([99], [0.5], [1, 0], "candidates 99 to 99"),
        ([200], [0.5], [0, 1], "candidates 200 to 200"),
        ([100], [float("nan")], [1, 0], "not finite"),
        ([100], [float("inf")], [1, 0], "not finite"),
        ([100, 101, 100], [0.5] * 3, [3, 0], "twice"),
    ],
)
def test_response_that_does_not_fit_the_search_is_a_failure_of_the_shard(
    positions: list[int], scores: list[float], counts: list[int], message: str
) -> None:
    with pytest.raises(Internal, match=message):
        read(positions, scores, counts)


@pytest.mark.parametrize(
    ("positions", "counts", "denied", "excluded"),
    [
        ([], [0, 0], (), ()),
        ([100, 101, 102, 100, 101], [3, 2], (), ()),
        # 98 of the 100 are denied, and others that another shard holds.
        ([198, 198], [1, 1], range(98, 198), ()),
        ([100, 101, 102, 100], [3, 1], (), ([], [*range(100, 198)])),
        ([197, 198, 199, 198], [3, 1], range(98, 197), ([], [197])),
    ],
)
def test_fewer_candidates_than_a_shard_holds_are_a_failure_of_the_shard(
    positions: list[int],
    counts: list[int],
    denied: Iterable[int],
    excluded: tuple[list[int], ...],
) -> None:
    with pytest.raises(Internal, match="it holds more that are not excluded"):
        read(positions, [0.5] * len(positions), counts, None, denied, excluded)


def test_all_candidates_that_are_not_excluded_are_accepted() -> None:
    neighbors = read([198, 199, 199], [0.5] * 3, [2, 1], None, range(98, 198), ([], [198]))
    assert neighbors.offsets.tolist() == [0, 2, 3]


def test_denied_candidates_reach_the_shard_once_and_exclusions_for_each_query() -> None:
    search = IndexSearch(
        index="movies",
        vectors=np.zeros((2, 4), np.float32),
        k=3,
        denied=np.array([5, 9], np.uint32),
        excluded=(np.array([7], np.uint32), np.empty(0, np.uint32)),
    )
    bundle = shard_pb.Bundle(model="movies", version=1, number=1, total=2)
    message = messages.search_message(bundle, search)
    read_again = messages.read_search(message, None, ServiceSettings(root=Path.cwd())).search
    assert plain(read_again) == plain(search)
