"""Protobuf messages to requests, and answers to messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.requests import Embedded, LookedUp, Neighbors, Ranked, Recommended, Retrieved, Target
from service.errors import InvalidArgument
from service.wire import messages
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb


def _int64s(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def _int32s(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


def test_retrieval_reads_every_field() -> None:
    request = messages.read_retrieval(
        pb.RetrieveRequest(
            model=pb.ModelSpec(name="movies", version=2),
            index="main",
            k=3,
            features={
                "user": pb.Column(int64s=_int64s(5, -(2**63))),
                "hour": pb.Column(int32s=_int32s(-7, 8)),
                "tags": pb.Column(strings=pb.Strings(values=["a", "b", "c"]), offsets=_int32s(0, 1, 3)),
                "age": pb.Column(float32s=np.array([0.5, 2], "<f4").tobytes()),
                "bag": pb.Column(int64s=_int64s(1, 2), weights=np.array([0.5, 1], "<f4").tobytes()),
            },
            exclude_ids=pb.Ids(strings=pb.Strings(values=["x"])),
            exclude_offsets=_int32s(0, 1, 1),
            attributes=["title"],
            exact=True,
        ).SerializeToString()
    )
    assert (request.target, request.index, request.k, request.exact) == (Target("movies", 2), "main", 3, True)
    assert request.attributes == ("title",)
    assert request.features is not None
    assert request.features["user"].values.tolist() == [5, -(2**63)]
    assert request.features["hour"].values.dtype == np.int64
    assert request.features["hour"].values.tolist() == [-7, 8]
    assert request.features["tags"].values.tolist() == ["a", "b", "c"]
    assert request.features["tags"].offsets is not None
    assert request.features["tags"].offsets.dtype == np.int64
    assert request.features["tags"].offsets.tolist() == [0, 1, 3]
    assert request.features["age"].values.tolist() == [0.5, 2.0]
    assert request.features["bag"].weights is not None
    assert request.features["bag"].weights.tolist() == [0.5, 1.0]
    assert request.exclude is not None
    assert request.exclude.offsets is not None
    assert request.exclude.offsets.tolist() == [0, 1, 1]


def test_retrieval_of_an_empty_body_asks_for_the_defaults() -> None:
    request = messages.read_retrieval(b"")
    assert (request.target, request.k, request.features, request.vectors) == (Target(), 10, None, None)
    assert (request.ids, request.exclude, request.filter) == (None, None, None)


def test_retrieval_filter_is_carried_so_that_it_can_be_refused() -> None:
    body = pb.RetrieveRequest(filter=pb.Filter()).SerializeToString()
    assert messages.read_retrieval(body).filter is not None


def test_ranking_reads_candidates_by_id_and_by_feature() -> None:
    request = messages.read_ranking(
        pb.RankRequest(
            context={"user": pb.Column(int64s=_int64s(1))},
            candidate_ids=pb.Ids(int64s=_int64s(10, 20)),
            candidates={"price": pb.Column(float32s=np.array([1, 2], "<f4").tobytes())},
            offsets=_int32s(0, 2),
            heads=["ctr"],
            k=1,
        ).SerializeToString()
    )
    assert request.candidate_ids is not None
    assert request.candidate_ids.tolist() == [10, 20]
    assert request.candidates["price"].values.tolist() == [1.0, 2.0]
    assert request.offsets is not None
    assert request.offsets.tolist() == [0, 2]
    assert (request.heads, request.k) == (("ctr",), 1)


@pytest.mark.parametrize(
    ("call", "message", "told"),
    [
        ("retrieve", pb.RetrieveRequest(features={"a": pb.Column()}), "features.a has no values"),
        ("retrieve", pb.RetrieveRequest(features={"a": pb.Column(int64s=b"1234567")}), "7 bytes; a multiple of 8"),
        ("retrieve", pb.RetrieveRequest(features={"a": pb.Column(int32s=b"123")}), "3 bytes; a multiple of 4"),
        ("retrieve", pb.RetrieveRequest(features={"a": pb.Column(int64s=b"", offsets=b"1")}), "features.a.offsets"),
        ("retrieve", pb.RetrieveRequest(vectors=b"12345"), "vectors has 5 bytes"),
        ("retrieve", pb.RetrieveRequest(ids=pb.Ids()), "ids is empty"),
        ("retrieve", pb.RetrieveRequest(exclude_offsets=_int32s(0, 1)), "without exclude_ids"),
        ("retrieve", pb.RetrieveRequest(model=pb.ModelSpec(version=-1)), "model.version is -1"),
        ("rank", pb.RankRequest(offsets=b"123"), "offsets has 3 bytes"),
        ("lookup", pb.LookupRequest(feature="user"), "ids has no values"),
    ],
)
def test_readers_refuse_and_name_the_field(call: str, message: Any, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        OPERATIONS[call].read_message(message.SerializeToString(), None)
    assert told in str(refused.value)


@pytest.mark.parametrize("call", sorted(OPERATIONS))
def test_readers_refuse_what_does_not_decode(call: str) -> None:
    for body in (b"\xff\xff\xff", b"\x0a\x7f", b'{"k": 3}'):
        with pytest.raises(InvalidArgument, match="do not decode as protobuf"):
            OPERATIONS[call].read_message(body, None)


@given(st.sampled_from(sorted(OPERATIONS)), st.binary(max_size=64))
def test_readers_take_or_refuse_any_bytes_and_never_break(call: str, body: bytes) -> None:
    try:
        request = OPERATIONS[call].read_message(body, None)
    except InvalidArgument:
        return
    assert isinstance(request.target, Target)


def test_target_of_a_url_may_be_repeated_but_not_contradicted() -> None:
    url = Target("movies", 3)
    assert messages.target_of(pb.ModelSpec(), url) == url
    assert messages.target_of(pb.ModelSpec(name="movies", version=3), url) == url
    assert messages.target_of(pb.ModelSpec(name="movies", label="stable"), None) == Target("movies", None, "stable")
    for spec in (pb.ModelSpec(name="books"), pb.ModelSpec(version=2), pb.ModelSpec(label="stable")):
        with pytest.raises(InvalidArgument, match="send it once"):
            messages.target_of(spec, url)


def test_retrieved_packs_neighbors_and_every_kind_of_attribute() -> None:
    neighbors = Neighbors(
        ids=np.array([7, 2**60], dtype=np.int64),
        scores=np.array([0.5, 0.25], dtype=np.float32),
        offsets=np.array([0, 2], dtype=np.int64),
        attributes={
            "title": ["A", None],
            "year": [None, 1999],
            "mark": [0.5, 2],
            "tags": [["x", "y"], None],
            "none": [None, None],
        },
    )
    message = messages.retrieved_message(Retrieved("m", 4, neighbors, searched=12))
    assert (message.model.name, message.model.version, message.searched) == ("m", 4, 12)
    assert np.frombuffer(message.neighbors.ids.int64s, "<i8").tolist() == [7, 2**60]
    assert np.frombuffer(message.neighbors.scores, "<f4").tolist() == [0.5, 0.25]
    assert np.frombuffer(message.neighbors.offsets, "<i4").tolist() == [0, 2]
    attributes = message.neighbors.attributes
    assert list(attributes["title"].strings.values) == ["A", ""]
    assert list(attributes["title"].nulls) == [1]
    assert np.frombuffer(attributes["year"].int64s, "<i8").tolist() == [0, 1999]
    assert list(attributes["year"].nulls) == [0]
    assert np.frombuffer(attributes["mark"].float64s, "<f8").tolist() == [0.5, 2.0]
    assert [list(entry.values) for entry in attributes["tags"].lists.values] == [["x", "y"], []]
    assert attributes["none"].WhichOneof("values") is None
    assert list(attributes["none"].nulls) == [0, 1]


def test_ranked_without_ids_leaves_them_out() -> None:
    answer = Ranked(
        "m",
        1,
        ids=None,
        positions=np.array([1, 0], dtype=np.int32),
        scores=np.array([2, 1], dtype=np.float32),
        heads={"ctr": np.array([0.5, 0.25], dtype=np.float32)},
        offsets=np.array([0, 2], dtype=np.int64),
    )
    message = messages.ranked_message(answer)
    assert not message.HasField("candidate_ids")
    assert np.frombuffer(message.positions, "<i4").tolist() == [1, 0]
    assert np.frombuffer(message.heads["ctr"], "<f4").tolist() == [0.5, 0.25]


def test_recommended_with_no_neighbor_of_string_ids_still_says_their_kind() -> None:
    empty = Neighbors(np.array([], dtype=object), np.array([], dtype=np.float32), np.array([0, 0]))
    message = messages.recommended_message(Recommended("m", 1, empty, np.array([], dtype=np.float32)))
    assert message.neighbors.ids.WhichOneof("kind") == "strings"


def test_embedded_and_looked_up_rows_are_row_major_whatever_the_memory_order() -> None:
    rows = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    embedded = messages.embedded_message(Embedded("m", 1, rows))
    assert np.frombuffer(embedded.vectors, "<f4").reshape(2, embedded.dim).tolist() == [[0, 1, 2], [3, 4, 5]]
    looked_up = messages.looked_up_message(LookedUp("m", 1, "user", rows, np.array([True, False])))
    assert (looked_up.found, looked_up.table, looked_up.dim) == (b"\x01\x00", "user", 3)
