"""Every request is bounded, in both forms, and an error names the field, the count, the limit and its setting."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.codec import json as codec_json
from service.codec.limits import Limits
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.engine.requests import Target
from service.errors import InvalidArgument, TooLarge

LIMITS = Limits(max_values=4, max_features=3, max_queries=2, max_names=2)
FEATURES: dict[str, Any] = dict.fromkeys("abcd", 1)
COLUMNS = {name: pb.Column(int64s=b"12345678") for name in "abcd"}
FIVE, FIVE_IDS = pb.Column(int32s=b"1234" * 5), pb.Ids(int64s=b"12345678" * 5)
FIVE_TEXTS = pb.Strings(values=list("abcde"))


def test_limits_of_settings_have_the_names_of_the_settings(tmp_path: Path) -> None:
    settings = ServiceSettings(root=tmp_path, max_values=5, max_features=6, max_queries=7, max_names=8)
    assert Limits.of(settings) == Limits(max_values=5, max_features=6, max_queries=7, max_names=8)


@pytest.mark.parametrize(
    ("body", "count"), [(b"[[],[],[],[],[]]", 10), (b'{"a":{},"b":{},"c":{}}', 9), (b"[0,0,0,0,0,0,0,0,0]", 9)]
)
def test_parse_of_more_separators_than_values_may_have_is_too_large(body: bytes, count: int) -> None:
    with pytest.raises(TooLarge) as refused:
        codec_json.parse(body, LIMITS)
    assert str(refused.value) == (
        f"the body has {count} separators , [ {{ and :; at most 8 are accepted (twice max_values)"
    )


@pytest.mark.parametrize("value", [[[1], [2], [3]], [1, 2, 3, 4], {"a": 1, "b": 2}, "a" * 100])
def test_parse_within_the_limit_returns_the_value(value: Any) -> None:
    assert codec_json.parse(orjson.dumps(value), LIMITS) == value


@pytest.mark.parametrize("repeated", [b"[],", b"{},", b'{"a":{}},', b'"",'])
def test_parse_of_a_body_too_large_allocates_next_to_nothing(repeated: bytes) -> None:
    body = b"[" + repeated * 1_000_000 + b"0]"
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            codec_json.parse(body, replace(LIMITS, max_values=100_000))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        ("retrieve", {"features": FEATURES}, "features has 4 columns; at most 3 are accepted (max_features)"),
        ("recommend", {"features": FEATURES}, "features has 4 columns"),
        ("embed", {"requests": [{"features": FEATURES}] * 2}, "features has 4 columns"),
        ("rank", {"context": FEATURES, "candidates": [1]}, "context and features has 4 columns"),
        ("rank", {"context": {"a": 1, "b": 2}, "features": {"c": [1], "d": [1]}}, "context and features has 4 columns"),
        ("rank", {"heads": ["a", "b", "c"]}, "heads has 3 names; at most 2 are accepted (max_names)"),
        ("retrieve", {"id": 1, "attributes": ["a", "b", "c"]}, "attributes has 3 names"),
        ("recommend", {"features": {}, "attributes": ["a", "b", "c"]}, "attributes has 3 names"),
        ("retrieve", {"requests": [{"id": 1}] * 3}, "requests has 3 entries; at most 2 are accepted (max_queries)"),
        ("rank", {"requests": [{}] * 3}, "requests has 3 entries"),
        ("recommend", {"requests": [{}] * 3}, "requests has 3 entries"),
        ("embed", {"requests": [{}] * 3}, "requests has 3 entries"),
        ("lookup", {"feature": "a", "ids": [1, 2, 3, 4, 5]}, "ids has 5 values; at most 4 are accepted (max_values)"),
    ],
)
def test_json_beyond_a_limit_is_too_large(call: str, body: Any, expected: str) -> None:
    with pytest.raises(TooLarge) as refused:
        OPERATIONS[call].read_json(body, Target(), LIMITS)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("call", "message", "expected"),
    [
        ("retrieve", pb.RetrieveRequest(features=COLUMNS), "features has 4 columns; at most 3 are accepted"),
        ("recommend", pb.RecommendRequest(features=COLUMNS), "features has 4 columns"),
        ("embed", pb.EmbedRequest(features=COLUMNS), "features has 4 columns"),
        ("rank", pb.RankRequest(context=COLUMNS), "context and candidates has 4 columns"),
        ("rank", pb.RankRequest(candidates=COLUMNS), "context and candidates has 4 columns"),
        ("rank", pb.RankRequest(heads=["a", "b", "c"]), "heads has 3 names; at most 2 are accepted (max_names)"),
        ("retrieve", pb.RetrieveRequest(attributes=["a", "b", "c"]), "attributes has 3 names"),
        ("recommend", pb.RecommendRequest(attributes=["a", "b", "c"]), "attributes has 3 names"),
        (
            "retrieve",
            pb.RetrieveRequest(features={"a": FIVE}),
            "features.a.int32s has 5 values; at most 4 are accepted",
        ),
        ("retrieve", pb.RetrieveRequest(vectors=b"1234" * 5), "vectors has 5 values"),
        ("retrieve", pb.RetrieveRequest(ids=FIVE_IDS), "ids.int64s has 5 values"),
        ("retrieve", pb.RetrieveRequest(exclude_ids=FIVE_IDS), "exclude_ids.int64s has 5 values"),
        ("rank", pb.RankRequest(context_ids=pb.Ids(strings=FIVE_TEXTS)), "context_ids.strings has 5 values"),
        ("rank", pb.RankRequest(candidate_ids=FIVE_IDS), "candidate_ids.int64s has 5 values"),
        ("rank", pb.RankRequest(offsets=bytes(4 * 6)), "offsets has 6 values"),
        ("embed", pb.EmbedRequest(features={"a": pb.Column(strings=FIVE_TEXTS)}), "features.a.strings has 5 values"),
        ("embed", pb.EmbedRequest(features={"a": pb.Column(int64s=b"", offsets=bytes(4 * 6))}), "a.offsets has 6"),
        ("embed", pb.EmbedRequest(features={"a": pb.Column(int64s=b"", weights=bytes(4 * 5))}), "a.weights has 5"),
        ("lookup", pb.LookupRequest(ids=FIVE), "ids.int32s has 5 values"),
    ],
)
def test_message_beyond_a_limit_is_too_large(call: str, message: Any, expected: str) -> None:
    with pytest.raises(TooLarge) as refused:
        OPERATIONS[call].read_message(message, None, LIMITS)
    assert expected in str(refused.value)


def test_json_and_messages_at_the_limits_are_accepted() -> None:
    body = {"requests": [{"features": {"a": 1, "b": [1, 2], "c": 1}}] * 2, "attributes": ["x", "y"]}
    request, _ = OPERATIONS["retrieve"].read_json(body, Target(), LIMITS)
    assert len(request.features) == 3
    column = pb.Column(int32s=bytes(4 * 4), offsets=bytes(4 * 3) + b"\4\0\0\0", weights=bytes(4 * 4))
    message = pb.RecommendRequest(features={"a": column, "b": column, "c": column}, attributes=["x", "y"])
    assert len(OPERATIONS["recommend"].read_message(message, None, LIMITS).features) == 3


def test_nesting_beyond_the_depth_of_a_dense_value_is_refused() -> None:
    value: Any = 1
    for _ in range(10):
        value = [value]
    with pytest.raises(InvalidArgument, match=r"features\.a nests lists deeper than 8"):
        OPERATIONS["embed"].read_json({"features": {"a": value}}, Target(), LIMITS)
