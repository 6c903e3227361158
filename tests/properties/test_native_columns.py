"""Columns that compiled code reads from a message are protobuf's, and nothing is taken or refused that it would not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle import native
from service.errors import InvalidArgument
from service.wire import messages
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb

pytestmark = pytest.mark.skipif(native.plain_columns is None, reason=f"it was not compiled: {native.MISSING}")

KINDS = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
}
NAMES = st.sampled_from(["", "a", "b", "größe", "a" * 200])
BYTES = st.binary(max_size=40)


def varint(number: int, spare: int = 0) -> bytes:
    """Encodes a number, in more bytes than needed by `spare`."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out += bytes([number | 0x80] + [0x80] * (spare - 1) + [0]) if spare else bytes([number])
    return bytes(out)


def delimited(field: int, data: bytes, spare: int = 0) -> bytes:
    return varint(field << 3 | 2, spare) + varint(len(data), spare) + data


@st.composite
def odd_fields(draw: st.DrawFn) -> bytes:
    """A field of any number and type, whole or not."""
    tag = varint(draw(st.integers(0, 12) | st.integers(0, 1 << 36)) << 3 | draw(st.integers(0, 7)))
    return tag + draw(BYTES)


SPARE = st.sampled_from([0, 0, 0, 1, 3, 5, 9])
PARTS = st.builds(delimited, st.integers(1, 7), st.integers(0, 4).map(lambda n: bytes(range(8 * n))) | BYTES, SPARE)
VALUES = st.lists(PARTS | odd_fields(), max_size=4).map(b"".join)
KEYS = NAMES.map(str.encode) | BYTES
PLAIN = st.builds(lambda key, value: delimited(1, key) + delimited(2, value), KEYS, VALUES)
ENTRIES = PLAIN | st.lists(
    st.builds(delimited, st.integers(1, 3), KEYS | VALUES, SPARE) | odd_fields(), max_size=4
).map(b"".join)
BODIES = st.lists(st.builds(delimited, st.integers(1, 12), ENTRIES | BYTES, SPARE) | odd_fields(), max_size=6).map(
    b"".join
)


def told(read: Any, body: bytes) -> Any:
    """Returns what a reader makes of a body in a form that can be compared, or that it refuses."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.flags.aligned, value.tolist() if value.dtype == object else value.tobytes()
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return tuple(map(plain, value)) if isinstance(value, tuple) else value

    try:
        return {name: plain(value) for name, value in vars(read(body)).items() if name != "exclude"}
    except InvalidArgument as problem:
        return "decode as protobuf" in str(problem) or InvalidArgument


def assert_as_protobuf(call: str, body: bytes) -> None:
    read = OPERATIONS[call].read_message
    found = told(lambda each: read(each, None), body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "plain_columns", None)
        assert found == told(lambda each: read(each, None), body)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[str, bytes]:
    """A call and the bytes of a message of it, of columns of every kind."""
    call = draw(st.sampled_from(sorted(KINDS)))
    message: Any = KINDS[call](model=pb.ModelSpec(name=draw(NAMES), version=draw(st.integers(-1, 3))))
    for where in ("context", "candidates") if call == "rank" else ("features",):
        for name in draw(st.lists(NAMES, max_size=4)):
            column = getattr(message, where)[name]
            kind = draw(st.sampled_from(["int64s", "int32s", "float32s", "strings"]))
            if kind == "strings":
                column.strings.values.extend(draw(st.lists(NAMES, max_size=3)))
            else:
                setattr(column, kind, draw(BYTES | st.integers(0, 9).map(lambda n: bytes(range(8 * n)))))
            column.offsets = draw(st.just(b"") | st.binary(min_size=8, max_size=8) | BYTES)
            column.weights = draw(st.just(b"") | st.binary(min_size=8, max_size=8))
    return call, message.SerializeToString()


@settings(max_examples=400)
@given(encoded())
def test_messages_are_read_as_protobuf_reads_them(sent: tuple[str, bytes]) -> None:
    assert_as_protobuf(*sent)


@settings(max_examples=400)
@given(encoded(), encoded(), st.data())
def test_damaged_and_joined_messages_are_read_or_refused_as_by_protobuf(
    sent: tuple[str, bytes], other: tuple[str, bytes], data: st.DataObject
) -> None:
    call, body = sent[0], bytearray(sent[1] + other[1] * data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert_as_protobuf(call, bytes(body))


@settings(max_examples=1000)
@given(st.sampled_from(sorted(KINDS)), BODIES)
def test_bodies_that_no_library_writes_are_read_or_refused_as_by_protobuf(call: str, body: bytes) -> None:
    assert_as_protobuf(call, body)
    assert_as_protobuf(call, body[:-1])
