"""The internal gRPC service of a shard, and how a shard computes its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.codec import protobuf
from service.codec.operations import Operation
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import (
    ShardServiceServicer,
    add_ShardServiceServicer_to_server,
)
from service.engine.computation import Computation
from service.engine.context import RequestContext
from service.grpc_api.servicer import GrpcService, OperationServicer
from service.security.principal import authorize_all
from service.shards import messages
from service.shards.calls import RowsRequest, SearchRequest, read_rows, search_part

COMPUTE: Mapping[type, Callable[..., Computation[Any]]] = {
    RowsRequest: read_rows,
    SearchRequest: search_part,
}
OPERATIONS: Mapping[str, Operation] = {
    "rows": Operation(
        "rows", "Rows", shard_pb.RowsRequest, messages.read_rows, messages.rows_message
    ),
    "search": Operation(
        "search", "Search", shard_pb.SearchRequest, messages.read_search, messages.found_message
    ),
}
"""The calls of shards. They have no JSON: routers and shards alone speak them."""


class ShardServicer(OperationServicer, ShardServiceServicer):
    """The internal service of a shard."""

    operations = OPERATIONS
    Rows = Search = OperationServicer.execute

    # The generated servicer prescribes the name.
    async def Describe(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Describes the shard and what it has loaded."""
        protobuf.parse_small(shard_pb.DescribeRequest, request)
        authorize_all(context.principal)
        description = messages.description(
            self._dataplane.settings, self._dataplane.engine.bundles()
        )
        return bytes(description.SerializeToString())


SHARD_SERVICE = GrpcService(
    name=shard_pb.DESCRIPTOR.services_by_name["ShardService"].full_name,
    calls={
        **{operation.method: name for name, operation in OPERATIONS.items()},
        "Describe": "describe",
    },
    register=lambda dataplane, server: add_ShardServiceServicer_to_server(
        ShardServicer(dataplane), server
    ),
)
