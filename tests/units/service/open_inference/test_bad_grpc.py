"""What the protocol rejects over gRPC: with the status of the code, and a message that names what
is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from service.codec.stubs import open_inference_pb2 as pb
from tests.units.service.cases import MODEL
from tests.units.service.open_inference import forms
from tests.units.service.running import RunningService

WAIT_S = 20
CODES = {
    "INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "GONE": grpc.StatusCode.NOT_FOUND,
    "LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "NONE": grpc.StatusCode.UNIMPLEMENTED,
}


def infer(**fields: Any) -> pb.ModelInferRequest:
    """Returns a request of the query tower for one user."""
    return forms.message({"user": np.array([5])}, "query", MODEL, **fields)


def with_contents(datatype: str, shape: list[int], **contents: Any) -> pb.ModelInferRequest:
    message = infer()
    del message.raw_input_contents[:]
    message.inputs[0].datatype = datatype
    message.inputs[0].shape[:] = shape
    message.inputs[0].contents.CopyFrom(pb.InferTensorContents(**contents))
    return message


def with_raw(*raw: bytes) -> pb.ModelInferRequest:
    message = infer()
    message.raw_input_contents[:] = raw
    return message


def beside_raw() -> pb.ModelInferRequest:
    message = infer()
    message.inputs[0].contents.int64_contents.append(5)
    return message


def in_shared_memory() -> pb.ModelInferRequest:
    message = infer()
    message.inputs[0].parameters["shared_memory_region"].string_param = "region"
    return message


def with_parameter(name: str, **value: Any) -> pb.ModelInferRequest:
    message = infer()
    message.parameters[name].CopyFrom(pb.InferParameter(**value))
    return message


def with_binary_size(size: int) -> pb.ModelInferRequest:
    message = infer()
    message.inputs[0].parameters["binary_data_size"].int64_param = size
    return message


def of_model(name: str, version: str = "") -> pb.ModelInferRequest:
    return forms.message({"user": np.array([5])}, "query", name, model_version=version)


MESSAGES: dict[str, tuple[Any, str, str]] = {
    "bytes that are no message": (b"\xff\xff", "INVALID", "the body is not a ModelInferRequest"),
    "an empty message": (pb.ModelInferRequest(), "INVALID", "of signature 'serving_default'"),
    "an unknown signature": (
        forms.message({"user": np.array([5])}, "qery", MODEL),
        "INVALID",
        "no signature 'qery'",
    ),
    "a signature that is no string": (
        with_parameter("signature_name", bool_param=True),
        "INVALID",
        "parameters.signature_name is true",
    ),
    "an unknown model": (of_model("books"), "GONE", "books"),
    "an unknown version": (of_model(MODEL, "7"), "GONE", "7"),
    "a version that is no number": (of_model(MODEL, "x"), "INVALID", "version is 'x'"),
    "half a tensor": (
        with_raw(b"\0" * 4),
        "INVALID",
        "inputs.user has 4 bytes; 8 for INT64 of shape [1]",
    ),
    "elements of two tensors for one": (
        with_raw(b"", b""),
        "INVALID",
        "raw_input_contents has 2 tensors; 1, one for each",
    ),
    "both forms of a tensor": (
        beside_raw(),
        "INVALID",
        "inputs.user has both forms; raw_input_contents alone",
    ),
    "the field of another datatype": (
        with_contents("INT64", [1], int_contents=[5]),
        "INVALID",
        "contents has int_contents; int64_contents for INT64",
    ),
    "an integer that is too large": (
        with_contents("INT8", [1], int_contents=[300]),
        "INVALID",
        "holds 300; a number that fits INT8",
    ),
    "fewer elements": (
        with_contents("INT64", [2], int64_contents=[5]),
        "INVALID",
        "has 1 elements; 2 for INT64 of shape [2]",
    ),
    "FP16 in a field": (
        with_contents("FP16", [1]),
        "INVALID",
        "contents holds FP16; raw_input_contents was expected",
    ),
    "a string that is not UTF-8": (
        with_contents("BYTES", [1], bytes_contents=[b"\xff"]),
        "INVALID",
        "inputs.user holds bytes that are not UTF-8",
    ),
    "a negative size": (
        with_contents("INT64", [-1]),
        "INVALID",
        "inputs.user.shape holds -1; an integer of at least 0",
    ),
    "a shape whose product is enormous": (
        with_contents("INT64", [2**62, 2**62]),
        "LARGE",
        f"has {2**124} values; at most 300 are accepted",
    ),
    "an empty shape of an enormous size": (
        with_contents("INT64", [2**62, 0]),
        "LARGE",
        f"inputs.user has {2**62} values; at most 300 are accepted",
    ),
    "an unknown parameter": (
        with_parameter("timeouts", int64_param=1),
        "INVALID",
        "parameters has the unknown field 'timeouts'; one of signature_name",
    ),
    "a parameter of another type": (
        with_parameter("timeout", double_param=1.5),
        "INVALID",
        "parameters.timeout is 1.5; an integer was expected",
    ),
    "outputs that are no bytes": (
        with_parameter("binary_data_output", bool_param=False),
        "INVALID",
        "parameters.binary_data_output is false; true was expected",
    ),
    "a sequence": (
        with_parameter("sequence_start", bool_param=True),
        "NONE",
        "parameters.sequence_start is true; no such parameter was expected",
    ),
    "the binary size of another tensor": (
        with_binary_size(4),
        "INVALID",
        "inputs.user.parameters.binary_data_size is 4; 8, the size of its raw_input_contents",
    ),
    "a long id": (infer(id="x" * 1025), "INVALID", "id has 1025 characters"),
    "shared memory": (in_shared_memory(), "NONE", "shared memory is not provided"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_that_is_rejected_names_why(name: str, channel: grpc.Channel) -> None:
    message, code, words = MESSAGES[name]
    raw = message
    if not isinstance(message, bytes):
        raw = message.SerializeToString()
    with pytest.raises(grpc.RpcError) as problem:
        channel.unary_unary(f"/{forms.SERVICE}/ModelInfer")(raw, timeout=WAIT_S)
    assert problem.value.code() is CODES[code]
    assert words in problem.value.details()


def test_enormous_metadata_is_rejected_before_the_message_is_read(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as problem:
        channel.unary_unary(f"/{forms.SERVICE}/ModelInfer")(
            infer().SerializeToString(), timeout=WAIT_S, metadata=[("big", "x" * 20_000)]
        )
    assert problem.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_message_of_many_fields_is_rejected_before_it_is_parsed(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(protocols=("open-inference",), max_features=20, max_names=10)
    entry = pb.ModelInferRequest(inputs=[pb.ModelInferRequest.InferInputTensor()])
    with grpc.insecure_channel(service.grpc) as channel:
        method = channel.unary_unary(f"/{forms.SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as problem:
            method(entry.SerializeToString() * 100_000, timeout=WAIT_S)
    assert problem.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "the message has more than 480 fields" in problem.value.details()


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload", "ModelConfig"])
def test_method_that_is_not_provided_is_unimplemented(method: str, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as problem:
        channel.unary_unary(f"/{forms.SERVICE}/{method}")(b"", timeout=WAIT_S)
    assert problem.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert forms.SERVICE in problem.value.details()


def test_stream_is_unimplemented(channel: grpc.Channel) -> None:
    method = channel.stream_stream(f"/{forms.SERVICE}/ModelStreamInfer")
    responses = method(iter([b""]), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as problem:
        next(responses)
    assert problem.value.code() is grpc.StatusCode.UNIMPLEMENTED
