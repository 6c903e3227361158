"""The table of requests that both doors are asked: each as JSON and as a protobuf message, written by hand twice."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.wire.stubs import embedding_service_pb2 as pb

MODEL = "movies"
LIMITS = {
    "k_max": 50,
    "candidates_max": 60,
    "queries_max": 8,
    "ids_max": 300,
    "body_bytes_max": 16_384,
}
"""Of the service that is asked."""
REQUESTS: dict[str, Any] = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
    "lookup": pb.LookupRequest,
}


@dataclass(frozen=True)
class Case:
    """One request in both forms, and the code of its answer.

    Attributes:
      json: a JSON value, or raw bytes. message: a message's fields, or raw bytes.
      model, version: asked for; 0 is the newest.
    """

    name: str
    call: str
    json: Any
    message: Mapping[str, Any] | bytes
    code: str = "OK"
    model: str = MODEL
    version: int = 0

    def body(self) -> bytes:
        """The protobuf body; the model is told in it, as gRPC has no other place for that."""
        if isinstance(self.message, bytes):
            return self.message
        spec = pb.ModelSpec(name=self.model, version=self.version)
        told: bytes = REQUESTS[self.call](model=spec, **self.message).SerializeToString()
        return told


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ints(*values: int, at: Sequence[int] = (), weights: Sequence[float] = ()) -> pb.Column:
    return pb.Column(int64s=i64(*values), offsets=i32(*at), weights=f32(*weights))


def floats(*values: float, at: Sequence[int] = ()) -> pb.Column:
    return pb.Column(float32s=f32(*values), offsets=i32(*at))


def texts(*values: str, at: Sequence[int] = ()) -> pb.Column:
    return pb.Column(strings=pb.Strings(values=values), offsets=i32(*at))


def ids(*values: int) -> pb.Ids:
    return pb.Ids(int64s=i64(*values))


def _user(value: Any = 5, **more: Any) -> dict[str, Any]:
    return {"features": {"user": value, **more}}


def _pb_user(value: int = 5, **more: pb.Column) -> dict[str, Any]:
    return {"features": {"user": ints(value), **more}}


BAD, BIG, GONE = "INVALID_ARGUMENT", "TOO_LARGE", "NOT_FOUND"
FILM = {"movie": [1000, 1007], "genres": [["drama"], []], "year": [0.5, 0.25]}
PB_FILM = {
    "movie": ints(1000, 1007),
    "genres": texts("drama", at=(0, 1, 1)),
    "year": floats(0.5, 0.25),
}

RETRIEVALS = (
    Case("by features", "retrieve", _user(), _pb_user()),
    Case("k", "retrieve", {"k": 3, **_user()}, {"k": 3, **_pb_user()}),
    Case("k of zero is the default", "retrieve", {"k": 0, **_user()}, {"k": 0, **_pb_user()}),
    Case("k beyond the corpus", "retrieve", {"k": 50, **_user()}, {"k": 50, **_pb_user()}),
    Case("version named", "retrieve", _user(), _pb_user(), version=1),
    Case(
        "attributes of every type",
        "retrieve",
        {"k": 40, "attributes": ["title", "year", "rating", "genres"], **_user()},
        {"k": 40, "attributes": ["title", "year", "rating", "genres"], **_pb_user()},
    ),
    Case(
        "exclusions",
        "retrieve",
        {"exclude": [1000, 1007, 5], **_user()},
        {"exclude_ids": ids(1000, 1007, 5), **_pb_user()},
    ),
    Case("empty exclusion", "retrieve", {"exclude": [], **_user()}, {"exclude_ids": ids(), **_pb_user()}),
    Case("exact", "retrieve", {"exact": True, **_user()}, {"exact": True, **_pb_user()}),
    Case("index named", "retrieve", {"index": "movies", **_user()}, {"index": "movies", **_pb_user()}),
    Case("unknown integer", "retrieve", _user(10**15), _pb_user(10**15)),
    Case("negative integer", "retrieve", _user(-3), _pb_user(-3)),
    Case(
        "integer as decimal string",
        "retrieve",
        _user("9007199254740993"),
        {"features": {"user": texts("9007199254740993")}},
    ),
    Case("string", "retrieve", _user(city="oslo"), _pb_user(city=texts("oslo"))),
    Case("integer where a string is hashed", "retrieve", _user(city=17), _pb_user(city=ints(17))),
    Case("bag", "retrieve", _user(history=[1000, 1007]), _pb_user(history=ints(1000, 1007, at=(0, 2)))),
    Case("bag of one as scalar", "retrieve", _user(history=1000), _pb_user(history=ints(1000))),
    Case("empty bag", "retrieve", _user(history=[]), _pb_user(history=ints(at=(0, 0)))),
    Case("unknown ids in a bag", "retrieve", _user(history=[1, 1000]), _pb_user(history=ints(1, 1000, at=(0, 2)))),
    Case("dense number", "retrieve", _user(hour=7), _pb_user(hour=floats(7))),
    Case("dense number as int32", "retrieve", _user(hour=7), _pb_user(hour=pb.Column(int32s=i32(7)))),
    Case(
        "list",
        "retrieve",
        {
            "k": 4,
            "requests": [
                {"features": {"user": 1, "history": [1000]}, "exclude": [1014]},
                {"features": {"user": 2, "history": [1007, 1014]}},
                {"features": {"user": 3, "history": []}, "exclude": [1000, 1007]},
            ],
        },
        {
            "k": 4,
            "features": {"user": ints(1, 2, 3), "history": ints(1000, 1007, 1014, at=(0, 1, 3, 3))},
            "exclude_ids": ids(1014, 1000, 1007),
            "exclude_offsets": i32(0, 1, 1, 3),
        },
    ),
    Case("by vector", "retrieve", {"vector": [0.5] * 8}, {"vectors": f32(*[0.5] * 8)}),
    Case(
        "by vectors",
        "retrieve",
        {"requests": [{"vector": [0.5] * 8}, {"vector": [1, 0, 0, 0, 0, 0, 0, -1]}]},
        {"vectors": f32(*[0.5] * 8, 1, 0, 0, 0, 0, 0, 0, -1)},
    ),
    Case("by id", "retrieve", {"id": 1000}, {"ids": ids(1000)}),
    Case("by ids", "retrieve", {"requests": [{"id": 1000}, {"id": "1014"}]}, {"ids": ids(1000, 1014)}),
    Case("k negative", "retrieve", {"k": -1, **_user()}, {"k": -1, **_pb_user()}, BAD),
    Case("k over its limit", "retrieve", {"k": 51, **_user()}, {"k": 51, **_pb_user()}, BAD),
    Case("k huge", "retrieve", {"k": 2**31 - 1, **_user()}, {"k": 2**31 - 1, **_pb_user()}, BAD),
    Case("nothing told", "retrieve", {}, {}, BAD),
    Case("no feature told", "retrieve", {"features": {}}, {"features": {}}, BAD),
    Case(
        "told twice", "retrieve", {"id": 1000, "vector": [0.5] * 8}, {"ids": ids(1000), "vectors": f32(*[0.5] * 8)}, BAD
    ),
    Case("unknown feature", "retrieve", _user(age=3), _pb_user(age=ints(3)), BAD),
    Case("required feature missing", "retrieve", {"features": {"hour": 3}}, {"features": {"hour": floats(3)}}, BAD),
    Case("unknown index", "retrieve", {"index": "x", **_user()}, {"index": "x", **_pb_user()}, GONE),
    Case("unknown attribute", "retrieve", {"attributes": ["x"], **_user()}, {"attributes": ["x"], **_pb_user()}, BAD),
    Case("unknown model", "retrieve", _user(), _pb_user(), GONE, model="books"),
    Case("unknown version", "retrieve", _user(), _pb_user(), GONE, version=7),
    Case("filter", "retrieve", {"filter": {}, **_user()}, {"filter": pb.Filter(), **_pb_user()}, "UNIMPLEMENTED"),
    Case("vector of another dim", "retrieve", {"vector": [1.0] * 7}, {"vectors": f32(*[1.0] * 7)}, BAD),
    Case(
        "vector with NaN", "retrieve", b'{"vector": [NaN,0,0,0,0,0,0,0]}', {"vectors": f32(float("nan"), *[0] * 7)}, BAD
    ),
    Case(
        "vector with infinity",
        "retrieve",
        b'{"vector": [1e999,0,0,0,0,0,0,0]}',
        {"vectors": f32(float("inf"), *[0] * 7)},
        BAD,
    ),
    Case("id of no candidate", "retrieve", {"id": 3}, {"ids": ids(3)}, BAD),
    Case("fraction as id", "retrieve", _user(1.5), {"features": {"user": floats(1.5)}}, BAD),
    Case("NaN as id", "retrieve", b'{"features": {"user": NaN}}', {"features": {"user": floats(float("nan"))}}, BAD),
    Case("word where integers are ids", "retrieve", _user("ann"), {"features": {"user": texts("ann")}}, BAD),
    Case("number where strings are ids", "retrieve", _user(city=1.5), _pb_user(city=floats(1.5)), BAD),
    Case("string as number", "retrieve", _user(hour="7"), _pb_user(hour=texts("7")), BAD),
    Case(
        "NaN as number", "retrieve", b'{"features": {"user": 5, "hour": NaN}}', _pb_user(hour=floats(float("nan"))), BAD
    ),
    Case("several values of a single", "retrieve", _user([1, 2]), {"features": {"user": ints(1, 2, at=(0, 2))}}, BAD),
    Case("no value of a single", "retrieve", _user([]), {"features": {"user": ints(at=(0, 0))}}, BAD),
    Case("word as candidate in a bag", "retrieve", _user(history=["x"]), _pb_user(history=texts("x", at=(0, 1))), BAD),
    Case(
        "weights where none are taken",
        "retrieve",
        _user(history={"ids": [1000], "weights": [1]}),
        _pb_user(history=ints(1000, at=(0, 1), weights=(1,))),
        BAD,
    ),
    Case(
        "too many queries",
        "retrieve",
        {"requests": [_user(user) for user in range(9)]},
        {"features": {"user": ints(*range(9))}},
        BIG,
    ),
    Case(
        "too many values",
        "retrieve",
        _user(history=[1000] * 300),
        _pb_user(history=ints(*[1000] * 300, at=(0, 300))),
        BIG,
    ),
    Case(
        "too many exclusions",
        "retrieve",
        {"exclude": [7] * 301, **_user()},
        {"exclude_ids": ids(*[7] * 301), **_pb_user()},
        BIG,
    ),
    Case("undecodable body", "retrieve", b"{", b"\xff\xff\xff", BAD),
    Case("bytes of the other form", "retrieve", b"\x18\x05", b'{"k": 5}', BAD),
    Case("oversized body", "retrieve", b" " * 16_385, bytes(16_385), BIG),
    Case("vastly oversized body", "retrieve", b" " * 60_000, bytes(60_000), BIG),
)

RANKINGS = (
    Case(
        "by ids",
        "rank",
        {"context": {"user": 5}, "candidates": [1000, 1021]},
        {"context": {"user": ints(5)}, "candidate_ids": ids(1000, 1021)},
    ),
    Case(
        "the same candidate twice",
        "rank",
        {"context": {"user": 5}, "candidates": [1000, 1000]},
        {"context": {"user": ints(5)}, "candidate_ids": ids(1000, 1000)},
    ),
    Case(
        "best k with heads",
        "rank",
        {"k": 2, "heads": ["watch", "rating"], "context": {"user": 5}, "candidates": [1000, 1007, 1014, "1021"]},
        {
            "k": 2,
            "heads": ["watch", "rating"],
            "context": {"user": ints(5)},
            "candidate_ids": ids(1000, 1007, 1014, 1021),
        },
    ),
    Case(
        "by features alone",
        "rank",
        {"context": {"user": 5}, "features": FILM},
        {"context": {"user": ints(5)}, "candidates": PB_FILM},
    ),
    Case(
        "by ids with a feature overridden",
        "rank",
        {"context": {"user": 5}, "candidates": [1000, 1007], "features": {"year": [0.5, 0.75]}},
        {"context": {"user": ints(5)}, "candidate_ids": ids(1000, 1007), "candidates": {"year": floats(0.5, 0.75)}},
    ),
    Case(
        "every kind of context feature",
        "rank",
        {
            "context": {
                "user": 5,
                "liked": {"ids": [1000, 1007], "weights": [0.5, 2]},
                "recent": [1000, 1007, 1014, 1021],
                "hour": 0.5,
                "mood": [0.25, -1],
            },
            "candidates": [1014],
        },
        {
            "context": {
                "user": ints(5),
                "liked": ints(1000, 1007, at=(0, 2), weights=(0.5, 2)),
                "recent": ints(1000, 1007, 1014, 1021, at=(0, 4)),
                "hour": floats(0.5),
                "mood": floats(0.25, -1),
            },
            "candidate_ids": ids(1014),
        },
    ),
    Case(
        "list",
        "rank",
        {
            "k": 2,
            "requests": [
                {"context": {"user": 1, "mood": [0.5, 1]}, "candidates": [1000]},
                {"context": {"user": 2, "mood": [2, 3]}, "candidates": [1007, 1014, 1021]},
            ],
        },
        {
            "k": 2,
            "context": {"user": ints(1, 2), "mood": floats(0.5, 1, 2, 3)},
            "candidate_ids": ids(1000, 1007, 1014, 1021),
            "offsets": i32(0, 1, 4),
        },
    ),
    Case(
        "context with defaults only",
        "rank",
        {"context": {"user": 5}, "candidates": [1000]},
        {"context": {"user": ints(5)}, "candidate_ids": ids(1000)},
    ),
    Case(
        "no such candidate",
        "rank",
        {"context": {"user": 5}, "candidates": [7]},
        {"context": {"user": ints(5)}, "candidate_ids": ids(7)},
        BAD,
    ),
    Case(
        "fraction as candidate",
        "rank",
        {"context": {"user": 5}, "candidates": [1.5]},
        {"context": {"user": ints(5)}, "candidates": {"movie": floats(1.5)}},
        BAD,
    ),
    Case(
        "candidate feature missing",
        "rank",
        {"context": {"user": 5}, "features": {"movie": [1000]}},
        {"context": {"user": ints(5)}, "candidates": {"movie": ints(1000)}},
        BAD,
    ),
    Case(
        "candidate features of several lengths",
        "rank",
        {"context": {"user": 5}, "candidates": [1000, 1007], "features": {"year": [0.5]}},
        {"context": {"user": ints(5)}, "candidate_ids": ids(1000, 1007), "candidates": {"year": floats(0.5)}},
        BAD,
    ),
    Case(
        "unknown id that its feature refuses",
        "rank",
        {"context": {"user": 5}, "features": {**FILM, "movie": [1000, 5]}},
        {"context": {"user": ints(5)}, "candidates": {**PB_FILM, "movie": ints(1000, 5)}},
        BAD,
    ),
    Case("nothing to rank", "rank", {"context": {"user": 5}}, {"context": {"user": ints(5)}}, BAD),
    Case(
        "unknown head",
        "rank",
        {"heads": ["x"], "context": {"user": 5}, "candidates": [1000]},
        {"heads": ["x"], "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "unknown tower",
        "rank",
        {"tower": "x", "context": {"user": 5}, "candidates": [1000]},
        {"tower": "x", "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
        GONE,
    ),
    Case(
        "candidate feature as context",
        "rank",
        {"context": {"year": 0.5}, "candidates": [1000]},
        {"context": {"year": floats(0.5)}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "k negative",
        "rank",
        {"k": -1, "context": {"user": 5}, "candidates": [1000]},
        {"k": -1, "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "too many candidates",
        "rank",
        {"context": {"user": 5}, "candidates": [1000] * 61},
        {"context": {"user": ints(5)}, "candidate_ids": ids(*[1000] * 61)},
        BIG,
    ),
    Case(
        "weight that is no number",
        "rank",
        b'{"context": {"user": 5, "liked": {"ids": [1000], "weights": [NaN]}}, "candidates": [1000]}',
        {
            "context": {"user": ints(5), "liked": ints(1000, at=(0, 1), weights=(float("nan"),))},
            "candidate_ids": ids(1000),
        },
        BAD,
    ),
    Case(
        "fewer weights than ids",
        "rank",
        {"context": {"user": 5, "liked": {"ids": [1000, 1007], "weights": [1]}}, "candidates": [1000]},
        {"context": {"user": ints(5), "liked": ints(1000, 1007, at=(0, 2), weights=(1,))}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "weights without ids",
        "rank",
        {"context": {"user": 5, "liked": {"weights": [1]}}, "candidates": [1000]},
        {"context": {"user": ints(5), "liked": pb.Column(weights=f32(1))}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "dense value of another shape",
        "rank",
        {"context": {"user": 5, "mood": [1, 2, 3]}, "candidates": [1000]},
        {"context": {"user": ints(5), "mood": floats(1, 2, 3)}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case("empty body", "rank", b"", b"", BAD),
)

OTHERS = (
    Case(
        "recommend",
        "recommend",
        {"k": 5, "attributes": ["title"], **_user()},
        {"k": 5, "attributes": ["title"], **_pb_user()},
    ),
    Case(
        "recommend, list",
        "recommend",
        {"k": 2, "candidates": 5, "requests": [{**_user(1), "exclude": [1000]}, _user(2)]},
        {
            "k": 2,
            "candidates": 5,
            "features": {"user": ints(1, 2)},
            "exclude_ids": ids(1000),
            "exclude_offsets": i32(0, 1, 1),
        },
    ),
    Case(
        "recommend, fewer candidates than k",
        "recommend",
        {"k": 5, "candidates": 2, **_user()},
        {"k": 5, "candidates": 2, **_pb_user()},
        BAD,
    ),
    Case(
        "recommend, candidates negative",
        "recommend",
        {"candidates": -1, **_user()},
        {"candidates": -1, **_pb_user()},
        BAD,
    ),
    Case("recommend, no features", "recommend", {}, {}, BAD),
    Case("recommend, candidate feature", "recommend", _user(year=1.0), _pb_user(year=floats(1)), BAD),
    Case(
        "recommend, too many to rank",
        "recommend",
        {"requests": [_user(1), _user(2)]},
        {"features": {"user": ints(1, 2)}},
        BIG,
    ),
    Case("recommend, undecodable body", "recommend", b"]", b"\xff", BAD),
    Case("embed", "embed", {"tower": "query", **_user()}, {"tower": "query", **_pb_user()}),
    Case(
        "embed, candidates in a list",
        "embed",
        {
            "tower": "candidate",
            "requests": [
                {"features": {"movie": 1000, "genres": ["drama", "x"], "year": 0.5}},
                {"features": {"movie": 1007, "genres": [], "year": 1}},
            ],
        },
        {
            "tower": "candidate",
            "features": {
                "movie": ints(1000, 1007),
                "genres": texts("drama", "x", at=(0, 2, 2)),
                "year": floats(0.5, 1),
            },
        },
    ),
    Case("embed, tower not named", "embed", _user(), _pb_user(), BAD),
    Case("embed, unknown tower", "embed", {"tower": "x", **_user()}, {"tower": "x", **_pb_user()}, GONE),
    Case(
        "embed, unknown model",
        "embed",
        {"tower": "query", **_user()},
        {"tower": "query", **_pb_user()},
        GONE,
        model="x",
    ),
    Case(
        "lookup",
        "lookup",
        {"feature": "user", "ids": [3, 3, 10**12, 0]},
        {"feature": "user", "ids": ints(3, 3, 10**12, 0)},
    ),
    Case(
        "lookup, strings",
        "lookup",
        {"feature": "genres", "ids": ["drama", "x"]},
        {"feature": "genres", "ids": texts("drama", "x")},
    ),
    Case("lookup, nothing", "lookup", {"feature": "user", "ids": []}, {"feature": "user", "ids": ints()}),
    Case(
        "lookup, unknown id refused",
        "lookup",
        {"feature": "movie", "ids": [1000, 5]},
        {"feature": "movie", "ids": ints(1000, 5)},
        BAD,
    ),
    Case("lookup, unknown feature", "lookup", {"feature": "x", "ids": [1]}, {"feature": "x", "ids": ints(1)}, GONE),
    Case("lookup, dense feature", "lookup", {"feature": "hour", "ids": [1]}, {"feature": "hour", "ids": ints(1)}, BAD),
    Case("lookup, no ids", "lookup", {"feature": "user"}, {"feature": "user"}, BAD),
    Case(
        "lookup, too many ids",
        "lookup",
        {"feature": "user", "ids": [1] * 301},
        {"feature": "user", "ids": ints(*[1] * 301)},
        BIG,
    ),
)

CASES = RETRIEVALS + RANKINGS + OTHERS
