"""Random JSON, bytes and packed columns at both doors: answered or refused, alike, and never the end of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import Code
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.asked import Service, by_grpc, by_http, expect, serve
from tests.service.cases import MODEL, Case
from tests.service.small_bundle import write_small_bundle

bounded = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.integers(-(2**70), 2**70) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.sampled_from([1000, 5, "1007", "drama"])
names = st.sampled_from(
    ["user", "city", "history", "liked", "recent", "hour", "mood", "movie", "genres", "year", "ids"]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
features = st.dictionaries(names, values, max_size=4)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(-3, 60) | scalars,
        "features": features | values,
        "context": features | values,
        "candidates": st.lists(st.sampled_from([1000, 1007, 3, "x"]), max_size=4) | values,
        "vector": st.lists(st.floats(), max_size=9) | values,
        "id": values,
        "exclude": values,
        "requests": st.lists(features | values, max_size=3),
        "tower": st.sampled_from(["query", "candidate", "ranking", 1]),
        "feature": names,
        "ids": st.lists(scalars, max_size=4),
        "heads": values,
        "attributes": values,
    },
)
FINE = {"OK", *(code.value for code in Code)} - {"INTERNAL", "DATA_LOSS", "CANCELLED"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, 1)
    yield from serve(root)


@bounded
@given(call=st.sampled_from(sorted(OPERATIONS)), body=bodies | values)
def test_any_json_is_answered_or_refused_and_never_breaks_the_service(call: str, body: Any, service: Service) -> None:
    case = Case("any", call, json.dumps(body).encode(), b"")
    assert by_http(service, case, protobuf=False).code in FINE


@bounded
@given(call=st.sampled_from(sorted(OPERATIONS)), body=st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused_alike_and_never_break_the_service(
    call: str, body: bytes, service: Service
) -> None:
    case = Case("any", call, body, body)
    assert by_http(service, case, protobuf=False).code in FINE
    assert by_grpc(service, case).code in FINE
    assert by_http(service, case, protobuf=True).code in FINE


columns = st.builds(
    lambda kind, data, at, weights: pb.Column(**{kind: data}, offsets=at, weights=weights),
    st.sampled_from(["int64s", "int32s", "float32s"]),
    st.binary(max_size=24) | st.sampled_from([(1000).to_bytes(8, "little"), bytes(8), bytes(16)]),
    st.binary(max_size=8) | st.sampled_from([b"", bytes(4) + b"\x01" + bytes(3), bytes(8)]),
    st.binary(max_size=8) | st.just(b""),
)


@bounded
@given(features=st.dictionaries(names, columns, max_size=4), ids=st.binary(max_size=16), at=st.binary(max_size=12))
def test_any_packed_columns_are_answered_or_refused_alike(
    features: dict[str, pb.Column], ids: bytes, at: bytes, service: Service
) -> None:
    messages: dict[str, dict[str, Any]] = {
        "retrieve": {"features": features, "exclude_ids": pb.Ids(int64s=ids), "exclude_offsets": at},
        "rank": {"context": features, "candidate_ids": pb.Ids(int64s=ids), "offsets": at},
        "embed": {"tower": "query", "features": features},
    }
    for call, message in messages.items():
        case = Case("any", call, {}, message)
        http_answer, grpc_answer = by_http(service, case, protobuf=True), by_grpc(service, case)
        assert http_answer.code in FINE
        assert (http_answer.code, http_answer.sentence) == (grpc_answer.code, grpc_answer.sentence)


def test_after_all_that_the_service_still_answers(service: Service) -> None:
    expect(service, "OK")
