"""Server reflection, v1alpha and v1: what tools without the proto file ask for."""

from __future__ import annotations

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")


def handlers(services: tuple[str, ...]) -> list[grpc.GenericRpcHandler]:
    """Returns handlers that describe `services` and themselves.

    grpcio-reflection has v1alpha only. Version 1 renamed the package and changed nothing else, so that one servicer
    answers both.
    """
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file = text_format.Parse(text_format.MessageToString(file).replace("v1alpha", "v1"), FileDescriptorProto())
    descriptor_pool.Default().Add(file)  # so that version 1 describes itself, too
    servicer = reflection.aio.ReflectionServicer((*services, V1ALPHA, V1))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in (V1ALPHA, V1)]
