"""Protobuf messages to requests, and results to protobuf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.codec import protobuf
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.engine.calls import EmbeddingResult, LookupResult, RetrievalResult, Target
from service.errors import InvalidArgument

SETTINGS = ServiceSettings(root=Path.cwd())


def _int64s(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def _int32s(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


def _float32s(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


_IDS = pb.Ids(int64s=_int64s(1, 2))


def _lists(column: Any) -> list[Any]:
    return [None if part is None else part.tolist() for part in column]


def test_retrieval_with_columns_of_every_type_has_their_values() -> None:
    texts = pb.Strings(values=["a", "b", "c"])
    features = {
        "user": pb.Column(int64s=_int64s(5, -(2**63))),
        "hour": pb.Column(int32s=_int32s(-7, 8)),
        "tags": pb.Column(strings=texts, offsets=_int32s(0, 1, 3)),
        "bag": pb.Column(float32s=_float32s(1, 2), weights=_float32s(0.5, 1)),
    }
    request = protobuf.read_retrieval(pb.RetrieveRequest(context=features), None, SETTINGS)
    assert {name: _lists(column) for name, column in (request.context or {}).items()} == {
        "user": [[5, -(2**63)], None, None],
        "hour": [[-7, 8], None, None],
        "tags": [["a", "b", "c"], [0, 1, 3], None],
        "bag": [[1.0, 2.0], None, [0.5, 1.0]],
    }
    assert {column.values.dtype.char for column in (request.context or {}).values()} == set("lOf")


def test_retrieval_of_an_empty_message_has_the_defaults() -> None:
    request = protobuf.read_retrieval(pb.RetrieveRequest(), None, SETTINGS)
    assert (request.target, request.k, request.context, request.vectors) == (
        Target(),
        0,
        None,
        None,
    )
    assert (request.ids, request.exclude_ids, request.filter) == (None, None, None)


@pytest.mark.parametrize(
    ("call", "message", "expected"),
    [
        ("retrieve", pb.RetrieveRequest(context={"a": pb.Column()}), "context.a has no values"),
        (
            "retrieve",
            pb.RetrieveRequest(context={"a": pb.Column(int64s=b"", offsets=b"1")}),
            "context.a.offsets",
        ),
        ("retrieve", pb.RetrieveRequest(vectors=b"12345"), "vectors has 5 bytes"),
        ("retrieve", pb.RetrieveRequest(ids=pb.Ids()), "ids is empty"),
        ("retrieve", pb.RetrieveRequest(exclude_offsets=_int32s(0, 1)), "without exclude_ids"),
        ("retrieve", pb.RetrieveRequest(model=pb.ModelSpec(version=-1)), "model.version is -1"),
        (
            "rank",
            pb.RankRequest(candidate_ids=_IDS, offsets=_int32s(0, 1)),
            "offsets is [0 1] for 2 values; a list that begins",
        ),
    ],
)
def test_readers_of_a_message_that_does_not_fit_name_the_field(
    call: str, message: Any, expected: str
) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        OPERATIONS[call].read_message(message, None, SETTINGS)
    assert expected in str(rejected.value)
    (violation,) = rejected.value.violations
    assert violation.field in str(rejected.value)


@pytest.mark.parametrize("call", sorted(OPERATIONS))
@pytest.mark.parametrize(
    "body", [b"\xff\xff\xff", b"\x0a\x7f", b'{"k": 3}', b"\x0a\x03\x0a\x01\xff"]
)
def test_parse_of_what_does_not_decode_is_rejected(call: str, body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="do not decode as protobuf"):
        protobuf.parse(OPERATIONS[call].request_class, body)


@pytest.mark.parametrize("text", ["name", "key", "value", "title"])
def test_parse_of_a_string_that_is_not_utf8_is_rejected(text: str) -> None:
    message = pb.RetrieveRequest(
        model=pb.ModelSpec(name="name"),
        context={"key": pb.Column(strings=pb.Strings(values=["value"]))},
        attributes=["title"],
    )
    body = message.SerializeToString().replace(text.encode(), b"\xff" * len(text))
    with pytest.raises(InvalidArgument, match="UTF-8"):
        protobuf.parse(pb.RetrieveRequest, body)


def test_target_of_a_url_may_be_repeated_but_not_contradicted() -> None:
    url = Target("movies", 3)
    assert protobuf.target_of(pb.ModelSpec(), url) == url
    assert protobuf.target_of(pb.ModelSpec(name="movies", version=3), url) == url
    assert protobuf.target_of(pb.ModelSpec(name="movies", label="stable"), None) == Target(
        "movies", None, "stable"
    )
    for spec in (pb.ModelSpec(name="books"), pb.ModelSpec(version=2), pb.ModelSpec(label="stable")):
        with pytest.raises(InvalidArgument, match="send the model once"):
            protobuf.target_of(spec, url)


def test_retrieved_packs_neighbors_and_every_kind_of_attribute() -> None:
    attributes: dict[str, Any] = {
        "title": ["A", None],
        "year": [None, 1999],
        "mark": [0.5, 2],
        "tags": [["x", "y"], None],
        "none": [None, None],
    }
    ids = np.array([7, 2**60])
    scores = np.array([0.5, 0.25], np.float32)
    result = RetrievalResult("m", 4, ids, scores, np.array([0, 2]), attributes, searched=12)
    message = protobuf.retrieved_message(result)
    assert (message.model.name, message.model.version, message.searched) == ("m", 4, 12)
    assert np.frombuffer(message.ids.int64s, "<i8").tolist() == [7, 2**60]
    assert np.frombuffer(message.scores, "<f4").tolist() == [0.5, 0.25]
    assert np.frombuffer(message.offsets, "<i4").tolist() == [0, 2]
    assert list(message.attributes["title"].strings.values) == ["A", ""]
    assert list(message.attributes["title"].nulls) == [1]
    assert np.frombuffer(message.attributes["year"].int64s, "<i8").tolist() == [0, 1999]
    assert list(message.attributes["year"].nulls) == [0]
    assert np.frombuffer(message.attributes["mark"].float64s, "<f8").tolist() == [
        0.5,
        2.0,
    ]
    assert [list(entry.values) for entry in message.attributes["tags"].lists.values] == [
        ["x", "y"],
        [],
    ]
    assert message.attributes["none"].WhichOneof("values") is None
    assert list(message.attributes["none"].nulls) == [0, 1]


def test_recommended_with_no_neighbor_of_string_ids_keeps_their_kind() -> None:
    ids = np.array([], dtype=object)
    scores = np.array([], dtype=np.float32)
    result = RetrievalResult("m", 1, ids, scores, np.array([0, 0]), retrieval_scores=scores)
    message = protobuf.recommended_message(result)
    assert message.ids.WhichOneof("kind") == "strings"


def test_embedded_and_looked_up_rows_are_row_major_whatever_the_memory_order() -> None:
    rows = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    embedded = protobuf.embedded_message(EmbeddingResult("m", 1, rows))
    assert np.frombuffer(embedded.vectors, "<f4").reshape(2, embedded.dim).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    looked_up = protobuf.looked_up_message(
        LookupResult("m", 1, "user", rows, np.array([True, False]))
    )
    assert (looked_up.found, looked_up.table, looked_up.dim) == (b"\x01\x00", "user", 3)
