"""Calls by what server reflection says alone, as `grpcurl` makes them."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.e2e.process import WAIT_S


def method_names(channel: grpc.Channel, service: str) -> set[str]:
    """Returns the names of the methods of a service."""
    return {method.name for method in _service(channel, service).methods}


def json_response(
    channel: grpc.Channel, service: str, method: str, request: dict[str, Any]
) -> dict[str, Any]:
    """Calls a method with a request as JSON, and returns the response as JSON."""
    described = _service(channel, service).FindMethodByName(method)
    message = json_format.ParseDict(request, GetMessageClass(described.input_type)())
    response_class = GetMessageClass(described.output_type)
    send = channel.unary_unary(f"/{service}/{method}")
    response = response_class.FromString(send(message.SerializeToString(), timeout=WAIT_S))
    document: dict[str, Any] = json_format.MessageToDict(response, preserving_proto_field_name=True)
    return document


def _service(channel: grpc.Channel, name: str) -> Any:
    pool: Any = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    return pool.FindServiceByName(name)
