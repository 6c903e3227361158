"""Bodies and answers of the V2 inference protocol (KServe), which MLServer and Triton speak, by HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_TYPES = {"int64": "INT64", "float32": "FP32"}
_STRING, _MESSAGE, _INT64, _BYTES, _FLOAT = 9, 11, 3, 12, 2
_ONE, _MANY = 1, 3

Tensors = Mapping[str, NDArray[Any]]
Scores = NDArray[np.float32]


def json_body(tensors: Tensors) -> bytes:
    """Encodes one request for HTTP."""
    inputs = [
        {
            "name": name,
            "shape": list(each.shape),
            "datatype": _TYPES[each.dtype.name],
            "data": each.reshape(-1).tolist(),
        }
        for name, each in tensors.items()
    ]
    return orjson.dumps({"inputs": inputs})


def json_scores(body: bytes) -> Scores:
    """Decodes the one output of an answer over HTTP."""
    return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)


def message_body(model: str, tensors: Tensors) -> bytes:
    """Encodes one ModelInferRequest with raw contents."""
    request = _messages()["Request"](model_name=model)
    for name, each in tensors.items():
        request.inputs.add(name=name, datatype=_TYPES[each.dtype.name], shape=each.shape)
        request.raw_input_contents.append(each.tobytes())
    encoded: bytes = request.SerializeToString()
    return encoded


def message_scores(body: bytes) -> Scores:
    """Decodes the one output of a ModelInferResponse, raw or not."""
    answer = _messages()["Answer"].FromString(body)
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], "<f4")
    return np.array(answer.outputs[0].contents.fp32_contents, np.float32)


@cache
def _messages() -> dict[str, Any]:
    """The part of the protocol that is used.

    Source: kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto.
    """
    file = descriptor_pb2.FileDescriptorProto(name="v2_of_the_benchmark.proto", package="v2", syntax="proto3")
    fields = {
        "Contents": [("fp32_contents", 6, _FLOAT, _MANY, "")],
        "Tensor": [
            ("name", 1, _STRING, _ONE, ""),
            ("datatype", 2, _STRING, _ONE, ""),
            ("shape", 3, _INT64, _MANY, ""),
            ("contents", 5, _MESSAGE, _ONE, ".v2.Contents"),
        ],
        "Request": [
            ("model_name", 1, _STRING, _ONE, ""),
            ("inputs", 5, _MESSAGE, _MANY, ".v2.Tensor"),
            ("raw_input_contents", 7, _BYTES, _MANY, ""),
        ],
        "Answer": [
            ("outputs", 5, _MESSAGE, _MANY, ".v2.Tensor"),
            ("raw_output_contents", 6, _BYTES, _MANY, ""),
        ],
    }
    for name, listed in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, other in listed:
            message.field.add(name=field, number=number, type=kind, label=label, type_name=other or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v2.{name}")) for name in fields}
