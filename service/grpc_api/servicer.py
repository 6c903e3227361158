"""The methods of the contract, each one call of the data plane: serialized messages in and out, nothing of gRPC."""

from __future__ import annotations

import time

from service.codec import parts, protobuf, signatures
from service.codec.operations import OPERATIONS, SHARD_OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.embedding_service_pb2_grpc import EmbeddingServiceServicer
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceServicer
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.security.principal import authorize, authorize_all

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name
SHARD_SERVICE = shard_pb.DESCRIPTOR.services_by_name["ShardService"].full_name
_OPERATIONS = OPERATIONS | SHARD_OPERATIONS
CALLS: dict[str, dict[str, str]] = {
    SERVICE: {each.method: name for name, each in OPERATIONS.items()}
    | {"ListModels": "models", "GetModel": "model"},
    SHARD_SERVICE: {each.method: name for name, each in SHARD_OPERATIONS.items()}
    | {"Describe": "describe"},
}
"""Names of the calls, as in metrics, by service and method."""


class _Servicer:
    """Answers messages that `CallInterceptor` has authenticated, admitted and read; raises ServiceError."""

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane, self._engine, self._metrics = (
            dataplane,
            dataplane.engine,
            dataplane.metrics,
        )

    async def _call(self, request: bytes, context: RequestContext) -> bytes:
        """Answers the call that the context names."""
        operation = _OPERATIONS[context.call]
        answer, _ = await self._dataplane.call(operation, request, True, None, context)
        began = time.perf_counter()
        encoded: bytes = operation.write_message(answer).SerializeToString()
        context.phases["encode"] = seconds = time.perf_counter() - began
        self._metrics.observe("phase_seconds", seconds, context.call, "encode")
        return encoded


class EmbeddingServicer(_Servicer, EmbeddingServiceServicer):
    """The public service."""

    Retrieve = Rank = Recommend = Embed = Lookup = _Servicer._call

    async def ListModels(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802 - names of the contract
        """Lists models, versions and states."""
        protobuf.parse(pb.ListModelsRequest, request)
        authorize_all(context.principal)
        return bytes(signatures.models_message(self._engine.models()).SerializeToString())

    async def GetModel(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Describes the calls of a version."""
        target = protobuf.target_of(protobuf.parse(pb.GetModelRequest, request).model, None)
        authorize(context.principal, target.model)
        return bytes(signatures.details_message(self._engine.model(target)).SerializeToString())


class ShardServicer(_Servicer, ShardServiceServicer):
    """The internal service of a shard."""

    Rows = Search = _Servicer._call

    async def Describe(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Describes the shard and what it has loaded."""
        protobuf.parse(shard_pb.DescribeRequest, request)
        authorize_all(context.principal)
        return bytes(
            parts.description(self._dataplane.settings, self._engine.bundles()).SerializeToString()
        )
