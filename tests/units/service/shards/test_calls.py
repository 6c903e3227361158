"""What a shard rejects of the calls of routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub
from tests.bundles.small import SmallBundle
from tests.units.service.running import RunningService

Stub = tuple[ShardServiceStub, shard_pb.Bundle]


@pytest.fixture
def stub(write: Callable[..., SmallBundle], serve: Callable[..., RunningService]) -> Iterator[Stub]:
    """The only shard, and its bundle."""
    write(partitions=2)
    with grpc.insecure_channel(serve(shard="1/1", shard_min_bytes=1).grpc) as channel:
        stub = ShardServiceStub(channel)
        (bundle,) = stub.Describe(shard_pb.DescribeRequest(), wait_for_ready=True).bundles
        bundle.number = bundle.total = 1
        yield stub, bundle


def positions(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


VECTOR = np.zeros(8, "<f4").tobytes()
SEARCH: dict[str, Any] = {"index": "movies", "vectors": VECTOR, "dim": 8, "k": 3}
SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({"vectors": b""}, "vectors is empty"),
    ({"k": 0}, "k is 0"),
    ({"recall": 7.0}, "recall is 7.0"),
    ({"recall": float("nan")}, "recall is nan"),
    ({"denied": positions(2, 1)}, "ascend"),
    ({"denied": positions(2, 2)}, "ascend"),
    ({"excluded": [shard_pb.Excluded(positions=positions(9, 1))]}, "ascend"),
]
ROWS: list[tuple[dict[str, Any], str]] = [
    ({"tables": ["users"], "counts": positions(1), "positions": positions(50)}, "one below 50"),
    ({"tables": ["users"], "counts": positions(3), "positions": positions(1, 2)}, "the sum 3"),
    (
        {"tables": ["users", "hours"], "counts": positions(1, 1), "positions": positions(1, 2)},
        "no part of table 'hours' is held here",
    ),
    (
        {"tables": ["genres", "users"], "counts": positions(1, 1), "positions": positions(1, 2)},
        "one row layout",
    ),
]


def test_call_that_no_router_sends_is_rejected(stub: Stub) -> None:
    shard, bundle = stub
    other = shard_pb.Bundle()
    other.CopyFrom(bundle)
    other.fingerprint ^= 1
    calls: list[tuple[Any, Any, str]] = [
        (shard.Rows, shard_pb.RowsRequest(bundle=other, rows=[shard_pb.Rows()]), "another bundle")
    ]
    for rows, words in ROWS:
        request = shard_pb.RowsRequest(bundle=bundle, rows=[shard_pb.Rows(**rows)])
        calls.append((shard.Rows, request, words))
    for fields, words in SEARCHES:
        search = shard_pb.SearchRequest(bundle=bundle, **SEARCH | fields)
        calls.append((shard.Search, search, words))
    for method, request, words in calls:
        with pytest.raises(grpc.RpcError) as failed:
            method(request)
        assert failed.value.code() in {
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        }
        assert words in failed.value.details()


def test_search_for_more_candidates_than_are_held_returns_all(stub: Stub) -> None:
    shard, bundle = stub
    request = shard_pb.SearchRequest(bundle=bundle, **SEARCH | {"k": (1 << 31) - 1})
    response = shard.Search(request)
    assert sorted(np.frombuffer(response.positions, "<u4").tolist()) == list(range(40))
