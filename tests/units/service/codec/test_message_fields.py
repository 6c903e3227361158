"""What is known of a message before it is parsed: the model that it names."""

from __future__ import annotations

from typing import Any

import pytest

from service.codec.message_fields import check_fields, model_of
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs import tensorflow_serving_pb2 as tensors_pb
from service.errors import TooLarge

_EXAMPLE = tensors_pb.Example(
    features={"feature": {"a": tensors_pb.Feature(int64_list={"value": [1] * 80_000})}}
)
K = pb.RetrieveRequest(k=3).SerializeToString()
NAMED = pb.RetrieveRequest(model=pb.ModelSpec(name="movies", version=7)).SerializeToString()
LONG = pb.RetrieveRequest(model=pb.ModelSpec(name="m" * 2_000)).SerializeToString()


@pytest.mark.parametrize("name", OPERATIONS)
def test_model_of_every_request_is_known_whatever_follows_it(name: str) -> None:
    message: Any = OPERATIONS[name].request_class(model=pb.ModelSpec(name="movies"))
    assert OPERATIONS[name].model_of(message.SerializeToString() + b"\xff" * 9) == "movies"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (NAMED, "movies"),
        (K + NAMED, "movies"),
        (K * 1_024 + NAMED, "movies"),
        (K * 1_025 + NAMED, ""),
        (K, ""),
        (LONG, ""),
        (b"", ""),
        (b"\x0a", ""),
        (b"\x0a\x03\x0a\x01\xff", ""),  # not UTF-8
        (b"\x08\x01", ""),  # no message
        (b"\xff" * (16 << 20), ""),  # a number without end
        (b"\x08" + b"\xff" * (16 << 20), ""),
    ],
)
def test_model_of_a_message_is_read_among_its_first_fields(body: bytes, expected: str) -> None:
    assert model_of(pb.RetrieveRequest.DESCRIPTOR, body) == expected


def test_number_without_end_is_left_to_the_parser() -> None:
    check_fields(pb.RetrieveRequest.DESCRIPTOR, b"\x08" + b"\xff" * (16 << 20), 10, 10)


def test_model_of_a_request_to_a_shard_is_that_of_its_bundle() -> None:
    message = shard_pb.RowsRequest(bundle=shard_pb.Bundle(model="movies", fingerprint=7))
    assert model_of(shard_pb.RowsRequest.DESCRIPTOR, message.SerializeToString()) == "movies"


@pytest.mark.parametrize(
    "message",
    [
        tensors_pb.ExamplesRequest(input={"example_list": {"examples": [_EXAMPLE]}}),
        tensors_pb.PredictRequest(inputs={"a": tensors_pb.TensorProto(float_val=[1] * 80_000)}),
        pb.ChangeRequest(attributes={"a": pb.Attribute(nulls=[0] * 80_000)}),
    ],
)
def test_message_of_very_many_packed_numbers_is_too_large_before_it_is_parsed(message: Any) -> None:
    body = message.SerializeToString()
    check_fields(message.DESCRIPTOR, body, 10, 80_000)
    with pytest.raises(TooLarge, match=r"more than 79999 values.*max_values"):
        check_fields(message.DESCRIPTOR, body, 10, 79_999)
