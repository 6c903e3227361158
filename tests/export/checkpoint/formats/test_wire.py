"""Protobuf's wire format, against the protobuf library's own encoder."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from export.checkpoint.formats.wire import WireError, as_bytes, as_int, as_text, read_fields, read_varint


def test_read_fields_message_of_the_protobuf_library_gives_its_values() -> None:
    message = FileDescriptorProto(name="näme", dependency=["a", "b"], public_dependency=[0, 300, 2**31 - 1])
    fields = read_fields(message.SerializeToString())
    assert [as_text(value) for number, value in fields if number == 1] == ["näme"]
    assert [as_text(value) for number, value in fields if number == 3] == ["a", "b"]
    assert [as_int(value) for number, value in fields if number == 10] == [0, 300, 2**31 - 1]


def test_as_int_negative_number_is_signed() -> None:
    message = FieldDescriptorProto(number=-7)
    assert [as_int(value) for _, value in read_fields(message.SerializeToString())] == [-7]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x08", "varint"),
        (b"\x08\xff", "varint"),
        (b"\x08" + b"\xff" * 11, "longer"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "64 bits"),
        (b"\x0a\x05abc", "claims 5 bytes"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "claims"),
        (b"\x0d\x01", "end within"),
        (b"\x09\x01\x02", "end within"),
        (b"\x0b\x0c", "wire type 3"),
    ],
)
def test_read_fields_bytes_that_are_no_message_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(WireError, match=what):
        read_fields(data)


def test_values_of_the_other_kind_are_refused() -> None:
    with pytest.raises(WireError):
        as_int(b"1")
    with pytest.raises(WireError):
        as_bytes(1)
    with pytest.raises(WireError, match="UTF-8"):
        as_text(b"\xff")


def test_read_varint_returns_where_it_ended() -> None:
    assert read_varint(b"\x00\xac\x02\x07", 1) == (300, 3)
