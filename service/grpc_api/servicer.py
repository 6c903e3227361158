"""The methods of the contract, each one call of the data plane: serialized messages in and out,
nothing of gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from service.codec import protobuf, signatures
from service.codec.operations import OPERATIONS, Operation
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs.embedding_service_pb2_grpc import (
    EmbeddingServiceServicer,
    add_EmbeddingServiceServicer_to_server,
)
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.security.principal import authorize, authorize_all

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name


@dataclass(frozen=True)
class GrpcService:
    """A service that a server registers.

    Attributes:
      name: The full name, as in the contract.
      calls: The names of the calls, as in metrics, by method.
      register: Adds the servicer of a data plane to a server of `grpc.aio`.
    """

    name: str
    calls: Mapping[str, str]
    register: Callable[[Dataplane, Any], None]


class OperationServicer:
    """Responds to messages that `CallInterceptor` has authenticated, admitted and read; raises
    ServiceError.
    """

    operations: ClassVar[Mapping[str, Operation]]

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane
        self._engine = dataplane.engine

    async def execute(self, request: bytes, context: RequestContext) -> bytes:
        """Executes the call that the context names."""
        operation = self.operations[context.call]
        (response,) = await self._dataplane.call(operation, request, True, None, context)
        return response


class EmbeddingServicer(OperationServicer, EmbeddingServiceServicer):
    """The public service."""

    operations = OPERATIONS
    Retrieve = Rank = Recommend = Embed = Lookup = OperationServicer.execute

    # names of the contract
    async def ListModels(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Lists models, versions and states."""
        protobuf.parse_small(pb.ListModelsRequest, request)
        authorize_all(context.principal)
        return bytes(signatures.models_message(self._engine.models()).SerializeToString())

    async def GetModel(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Describes the calls of a version."""
        message = protobuf.parse_small(pb.GetModelRequest, request)
        target = protobuf.target_of(message.model, None)
        context.model = target.model
        authorize(context.principal, target.model)
        return bytes(signatures.details_message(self._engine.model(target)).SerializeToString())


EMBEDDING_SERVICE = GrpcService(
    name=SERVICE,
    calls={
        **{operation.method: name for name, operation in OPERATIONS.items()},
        "ListModels": "models",
        "GetModel": "model",
    },
    register=lambda dataplane, server: add_EmbeddingServiceServicer_to_server(
        EmbeddingServicer(dataplane), server
    ),
)
