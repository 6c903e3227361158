"""The methods of the contract, each one call of the data plane: serialized messages in and out,
nothing of gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from service.change_plane import ChangePlane
from service.codec import protobuf
from service.codec.changes import applied_message, change_message, read_change_message
from service.codec.message_fields import model_of
from service.codec.operations import OPERATIONS, Operation
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs.embedding_service_pb2_grpc import (
    EmbeddingServiceServicer,
    add_EmbeddingServiceServicer_to_server,
)
from service.dataplane import Dataplane
from service.engine.context import RequestContext
from service.grpc_api.descriptions import Methods
from service.security.principal import authorize, authorize_all

SERVICE = pb.DESCRIPTOR.services_by_name["EmbeddingService"].full_name


@dataclass(frozen=True)
class GrpcService:
    """A service that a server registers.

    Attributes:
      name: The full name, as in the contract.
      calls: The names of the calls, as in metrics, by method.
      register: Adds the servicer of a data plane to a server of `grpc.aio`.
      messages: The messages of the methods, for reflection; empty: a proto file describes the
        service.
    """

    name: str
    calls: Mapping[str, str]
    register: Callable[[Dataplane, Any], None]
    messages: Methods = field(default_factory=dict)


class OperationServicer:
    """Responds to messages that `CallInterceptor` has authenticated, admitted and read; raises
    ServiceError.
    """

    operations: ClassVar[Mapping[str, Operation]]

    def __init__(self, dataplane: Dataplane) -> None:
        """Creates the servicer; `dataplane` executes the calls."""
        self._dataplane = dataplane

    async def execute(self, request: bytes, context: RequestContext) -> bytes:
        """Executes the call that the context names."""
        operation = self.operations[context.call]
        (response,) = await self._dataplane.call(operation, request, True, None, context)
        return response


class EmbeddingServicer(OperationServicer, EmbeddingServiceServicer):
    """The public service."""

    operations = OPERATIONS
    Retrieve = Rank = Recommend = Embed = Lookup = OperationServicer.execute

    def __init__(self, dataplane: Dataplane, changes: ChangePlane) -> None:
        """Creates the servicer; `changes` makes the changes that clients send."""
        super().__init__(dataplane)
        self._changes = changes

    # The generated servicer prescribes the names of methods.
    async def Change(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Changes candidates or contexts."""
        context.model = model_of(pb.ChangeRequest.DESCRIPTOR, request)
        read = partial(read_change_message, request, self._dataplane.settings)
        authorize = self._changes.authorize_client
        result = await self._changes.change(read, len(request), authorize, context)
        context.model = result.model
        return bytes(change_message(result).SerializeToString())

    async def GetChanges(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Returns up to which offset each stream of changes of a model was applied."""
        message = protobuf.parse_small(pb.GetChangesRequest, request)
        context.model = message.model.name
        applied = await self._changes.applied(context)
        context.model = applied.model
        return bytes(applied_message(applied).SerializeToString())

    async def ListModels(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Lists models, versions and states."""
        protobuf.parse_small(pb.ListModelsRequest, request)
        authorize_all(context.principal)
        return bytes(self._dataplane.descriptions.models().SerializeToString())

    async def GetModel(self, request: bytes, context: RequestContext) -> bytes:  # noqa: N802
        """Describes the calls of a version."""
        message = protobuf.parse_small(pb.GetModelRequest, request)
        target = protobuf.target_of(message.model, None)
        context.model = target.model
        authorize(context.principal, target.model)
        return bytes(self._dataplane.descriptions.model(target).message.SerializeToString())


CALLS: Mapping[str, str] = {
    **{operation.method: name for name, operation in OPERATIONS.items()},
    "Change": "change",
    "GetChanges": "changes",
    "ListModels": "models",
    "GetModel": "model",
}
"""Names of the calls, as in metrics, by method."""


def embedding_service(changes: ChangePlane) -> GrpcService:
    """Returns the public service.

    Args:
      changes: Makes the changes that clients send.
    """

    def register(dataplane: Dataplane, server: Any) -> None:
        add_EmbeddingServiceServicer_to_server(EmbeddingServicer(dataplane, changes), server)

    return GrpcService(SERVICE, CALLS, register)
