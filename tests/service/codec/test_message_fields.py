"""What is known of a message before it is parsed: the model that it names."""

from __future__ import annotations

from typing import Any

import pytest

from service.codec.message_fields import check_fields, model_of
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb

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
        (K + NAMED, ""),
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
def test_model_of_a_message_is_read_in_its_first_field(body: bytes, expected: str) -> None:
    assert model_of(pb.RetrieveRequest.DESCRIPTOR, body) == expected


def test_number_without_end_is_left_to_the_parser() -> None:
    check_fields(pb.RetrieveRequest.DESCRIPTOR, b"\x08" + b"\xff" * (16 << 20), 10, 10)


def test_model_of_a_request_to_a_shard_is_not_known() -> None:
    message = shard_pb.RowsRequest().SerializeToString() + NAMED
    assert model_of(shard_pb.RowsRequest.DESCRIPTOR, message) == ""
