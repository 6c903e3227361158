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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vectors": b""}, "vectors is empty"),
        ({"k": 0}, "k is 0"),
        ({"recall": 7.0}, "recall is 7.0"),
        ({"recall": float("nan")}, "recall is nan"),
        ({"denied": positions(2, 1)}, "ascend"),
        ({"denied": positions(2, 2)}, "ascend"),
        ({"excluded": [shard_pb.Excluded(positions=positions(9, 1))]}, "ascend"),
    ],
)
def test_search_that_no_router_sends_is_rejected(
    fields: dict[str, Any], words: str, stub: Stub
) -> None:
    shard, bundle = stub
    vector = np.zeros(8, "<f4").tobytes()
    search = {"index": "movies", "vectors": vector, "dim": 8, "k": 3}
    with pytest.raises(grpc.RpcError) as failed:
        shard.Search(shard_pb.SearchRequest(bundle=bundle, **{**search, **fields}))
    assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in failed.value.details()


def test_search_for_more_candidates_than_are_held_returns_all(stub: Stub) -> None:
    shard, bundle = stub
    vector = np.ones(8, "<f4").tobytes()
    response = shard.Search(
        shard_pb.SearchRequest(
            bundle=bundle, index="movies", vectors=vector, dim=8, k=(1 << 31) - 1
        )
    )
    assert sorted(np.frombuffer(response.positions, "<u4").tolist()) == list(range(40))
