"""Every request is bounded before it is decoded, in both forms; an error names the field, the count
and the setting.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.codec import json as codec_json
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.engine.calls import Target
from service.errors import InvalidArgument, TooLarge

SETTINGS = ServiceSettings(
    root=Path.cwd(), max_values=4, max_features=3, max_queries=2, max_names=2
)
FEATURES: dict[str, Any] = dict.fromkeys("abcd", 1)
COLUMNS = {name: pb.Column(int64s=b"12345678") for name in "abcd"}
NAMES = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("body", "count"),
    [(b"[[],[],[],[],[]]", 10), (b'{"a":{},"b":{},"c":{}}', 9), (b"[0,0,0,0,0,0,0,0,0]", 9)],
)
def test_parse_of_more_separators_than_values_may_have_is_too_large(
    body: bytes, count: int
) -> None:
    with pytest.raises(
        TooLarge, match=rf"the body has {count} or more separators .* at most 8 .*twice max_values"
    ):
        codec_json.parse(body, SETTINGS)


@pytest.mark.parametrize("value", [[[1], [2], [3]], [1, 2, 3, 4], {"a": 1, "b": 2}, "a" * 100])
def test_parse_within_the_limit_returns_the_value(value: Any) -> None:
    assert codec_json.parse(orjson.dumps(value), SETTINGS) == value


@pytest.mark.parametrize("repeated", [b"[],", b'{"a":{}},', b'"",'])
def test_parse_of_a_body_too_large_allocates_next_to_nothing(repeated: bytes) -> None:
    body = b"[" + repeated * 1_000_000 + b"0]"
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            codec_json.parse(body, SETTINGS.model_copy(update={"max_values": 100_000}))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        (
            "retrieve",
            {"context": FEATURES},
            "context has 4 features; at most 3 are accepted (max_features)",
        ),
        (
            "rank",
            {"context": {"a": 1, "b": 2}, "candidate_features": {"c": [1], "d": [1]}},
            "the request has 4 features",
        ),
        ("rank", {"heads": NAMES}, "heads has 3 names; at most 2 are accepted (max_names)"),
        (
            "retrieve",
            {"requests": [{"ids": [1]}] * 3},
            "requests has 3 queries; at most 2 are accepted (max_queries)",
        ),
        (
            "embed",
            pb.EmbedRequest(features=COLUMNS),
            "features has 4 features; at most 3 are accepted (max_features)",
        ),
        (
            "rank",
            pb.RankRequest(candidate_features=COLUMNS),
            "the request has 4 features",
        ),
        (
            "recommend",
            pb.RecommendRequest(attributes=NAMES),
            "attributes has 3 names; at most 2 are accepted",
        ),
    ],
)
def test_read_beyond_a_limit_is_too_large(call: str, body: Any, expected: str) -> None:
    operation = OPERATIONS[call]
    with pytest.raises(TooLarge) as rejected:
        (operation.read_json if isinstance(body, dict) else operation.read_message)(
            body, Target(), SETTINGS
        )
    assert expected in str(rejected.value)
    (violation,) = rejected.value.violations
    assert violation.field in str(rejected.value)


def test_read_at_the_limits_is_accepted() -> None:
    body = {"requests": [{"context": {"a": 1, "b": [1, 2], "c": 1}}] * 2, "attributes": ["x", "y"]}
    request = OPERATIONS["retrieve"].read_json(body, Target(), SETTINGS)
    assert (len(request.context), request.attributes) == (3, ("x", "y"))
    message = pb.RecommendRequest(
        context={name: COLUMNS[name] for name in "abc"}, attributes=["x", "y"]
    )
    assert len(OPERATIONS["recommend"].read_message(message, None, SETTINGS).context) == 3


def nested(number: int, content: bytes) -> bytes:
    """A field of a message that holds bytes."""
    size = len(content)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


TWO_BYTES = {
    "features": b"\x22\x00",
    "attributes": b"\x4a\x00",
    "k": b"\x18\x01",
    "unknown group": b"\x7b\x7c",
}


@pytest.mark.parametrize("field", TWO_BYTES.values(), ids=TWO_BYTES)
def test_message_of_very_many_fields_is_too_large_before_it_is_parsed(field: bytes) -> None:
    body = field * 100_000
    with pytest.raises(TooLarge, match=r"more than 80 fields.*max_features and max_names"):
        OPERATIONS["retrieve"].read(body, True, None, SETTINGS)
    inside = nested(4, nested(2, body))  # the column of a feature
    with pytest.raises(TooLarge, match="more than 80 fields"):
        OPERATIONS["retrieve"].read(inside, True, None, SETTINGS)


def test_message_of_very_many_strings_is_too_large_before_it_is_parsed() -> None:
    body = nested(3, nested(4, b"\x0a\x00" * 100_000))
    with pytest.raises(TooLarge, match=r"more than 4 values; at most 4 are accepted .max_values."):
        OPERATIONS["lookup"].read(body, True, None, SETTINGS)


def test_large_message_within_the_limits_is_read() -> None:
    limits = SETTINGS.model_copy(update={"max_values": 20_000})
    ids = [f"user {number}" for number in range(20_000)]
    request = pb.LookupRequest(feature="user", ids=pb.Column(strings=pb.Strings(values=ids)))
    read, _ = OPERATIONS["lookup"].read(request.SerializeToString(), True, None, limits)
    assert read.ids.values.tolist() == ids


@pytest.mark.parametrize("end", [b"\xff", b"\x22\xff\xff\xff\xff\x0f", b"\x09", b"\x0d\x00"])
def test_large_malformed_message_is_left_to_the_parser(end: bytes) -> None:
    body = nested(2, b"x" * 80_000) + end
    with pytest.raises(InvalidArgument, match="do not decode as protobuf"):
        OPERATIONS["lookup"].read(body, True, None, SETTINGS)
