"""Random JSON, bytes and packed columns: every transport gives the same response or rejection, and
the service goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import Code
from tests.bundles.small import write_small_bundle
from tests.units.service.cases import LIMITS, Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

_FINE = {"OK", *(code.value for code in Code)} - {"INTERNAL", "DATA_LOSS", "CANCELLED"}
_bounded = settings(max_examples=100, suppress_health_check=list(HealthCheck))
_names = st.sampled_from(
    ["user", "city", "history", "liked", "recent", "hour", "mood", "movie", "genres", "year"]
)
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([1000, "1007", "x"])
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)
_columns = st.builds(
    lambda kind, data, at, weights: pb.Column(**{kind: data}, offsets=at, weights=weights),
    st.sampled_from(["int64s", "int32s", "float32s"]),
    st.binary(max_size=24) | st.sampled_from([(1000).to_bytes(8, "little"), bytes(8), bytes(16)]),
    st.binary(max_size=8) | st.sampled_from([b"", bytes(4) + b"\x01" + bytes(3), bytes(8)]),
    st.binary(max_size=8) | st.just(b""),
)


_pieces = st.sampled_from(
    [
        b"[",
        b"]",
        b"{}",
        b",",
        b":",
        b'"',
        b"0",
        b"1e39",
        b"true",
        b"null",
        b"9" * 20,
        b"\xff",
        b"\0",
    ]
)
_selected = {
    "filter": {"genres": {"allow": ["drama"], "deny": []}, "year": {"ge": 1990}},
    "explain": True,
}
_reordered = {
    "crowding": {"studio": 2},
    "diversity": 0.5,
    "min_score": -9,
    "recall": 0.5,
    "pool_size": 20,
    "offset": 3,
}
_listed = {
    "requests": [
        {"context": {"user": 3, "history": [1, 2]}, "exclude_ids": [5], "negative_ids": [7]}
    ],
    "attributes": [],
}
_shown: dict[str, dict[str, Any]] = {
    "retrieve": {"k": 3, **_listed, **_selected, **_reordered},
    "rank": {
        "context": {"user": 7, "liked": {"ids": [1], "weights": [0.5]}},
        "candidate_ids": [1000, 1007],
    },
    "recommend": {
        "k": 3,
        "context": {"city": "x", "user": 4},
        "formula": "score + 1",
        **_selected,
        **_reordered,
    },
    "embed": {"tower": "query", "features": {"user": 1}},
    "lookup": {"feature": "user", "ids": [1, "9007199254740993"]},
}


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """Returns a body with some stretches replaced, and perhaps cut off."""
    actual = bytearray(body)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(actual)))
        actual[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3) | _pieces)
    return bytes(actual[: draw(st.integers(0, len(actual)) | st.just(len(actual)))])


@_bounded
@given(name=st.sampled_from(sorted(OPERATIONS)), value=_values, data=st.data())
def test_service_given_any_json_responds_or_rejects(
    name: str, value: Any, data: st.DataObject, clients: Clients
) -> None:
    field = data.draw(
        st.sampled_from(["features", "context", "requests", "vectors", *_shown[name]])
    )
    other = st.sampled_from(
        [value, {data.draw(_names): value}, [value], {"requests": [{field: value}]}]
    )
    for body in (_shown[name] | {field: data.draw(other)}, value):
        code, message = clients.by_http(
            Case(name, "any", json.dumps(body).encode()), protobuf=False
        )
        assert code in _FINE, message
    sent = data.draw(damaged(json.dumps(_shown[name]).encode()))
    code, message = clients.by_http(Case(name, "any", sent), protobuf=False)
    assert code in _FINE, message


@_bounded
@given(
    name=st.sampled_from(sorted(OPERATIONS)),
    features=st.dictionaries(_names, _columns, max_size=4),
    raw=st.binary(max_size=200),
    ids=st.binary(max_size=16),
    data=st.data(),
)
def test_service_given_any_message_responds_or_rejects_alike(
    name: str,
    features: dict[str, pb.Column],
    raw: bytes,
    ids: bytes,
    data: st.DataObject,
    clients: Clients,
) -> None:
    fields: dict[str, Any] = {"context": features}
    if name == "embed":
        fields = {"features": features, "tower": "query"}
    elif name == "rank":
        fields = {"context": features, "candidate_ids": pb.Ids(int64s=ids)}
    elif name == "lookup":
        fields = {"feature": "user", "ids": next(iter(features.values()), None)}
    whole = Case(name, "any", None, message=fields)
    others = [
        Case(name, "any", None, message=each) for each in (raw, data.draw(damaged(whole.body())))
    ]
    for case in (whole, *others):
        (code, response) = clients.by_http(case, protobuf=True)
        by_grpc = clients.by_grpc(case)
        assert code in _FINE
        if "send the model once" not in str(response):  # the path of HTTP names the model, too
            assert (code, response) == by_grpc


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers)
    service = RunningService(root, **LIMITS)
    clients = Clients(service)
    yield clients
    clients.expect("OK")
    clients.close()
    service.close()
