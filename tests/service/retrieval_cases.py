"""Retrievals that both doors are asked."""

from __future__ import annotations

from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.cases import BAD, BIG, GONE, Case, f32, floats, i32, ids, ints, pb_user, texts, user

RETRIEVALS = (
    Case("by features", "retrieve", user(), pb_user()),
    Case("k", "retrieve", {"k": 3, **user()}, {"k": 3, **pb_user()}),
    Case("k of zero is the default", "retrieve", {"k": 0, **user()}, {"k": 0, **pb_user()}),
    Case("k beyond the corpus", "retrieve", {"k": 50, **user()}, {"k": 50, **pb_user()}),
    Case("version named", "retrieve", user(), pb_user(), version=1),
    Case(
        "attributes of every type",
        "retrieve",
        {"k": 40, "attributes": ["title", "year", "rating", "genres"], **user()},
        {"k": 40, "attributes": ["title", "year", "rating", "genres"], **pb_user()},
    ),
    Case(
        "exclusions",
        "retrieve",
        {"exclude": [1000, 1007, 5], **user()},
        {"exclude_ids": ids(1000, 1007, 5), **pb_user()},
    ),
    Case("empty exclusion", "retrieve", {"exclude": [], **user()}, {"exclude_ids": ids(), **pb_user()}),
    Case("exact", "retrieve", {"exact": True, **user()}, {"exact": True, **pb_user()}),
    Case("index named", "retrieve", {"index": "movies", **user()}, {"index": "movies", **pb_user()}),
    Case("unknown integer", "retrieve", user(10**15), pb_user(10**15)),
    Case("negative integer", "retrieve", user(-3), pb_user(-3)),
    Case(
        "integer as decimal string",
        "retrieve",
        user("9007199254740993"),
        {"features": {"user": texts("9007199254740993")}},
    ),
    Case("string", "retrieve", user(city="oslo"), pb_user(city=texts("oslo"))),
    Case("integer where a string is hashed", "retrieve", user(city=17), pb_user(city=ints(17))),
    Case("bag", "retrieve", user(history=[1000, 1007]), pb_user(history=ints(1000, 1007, at=(0, 2)))),
    Case("bag of one as scalar", "retrieve", user(history=1000), pb_user(history=ints(1000))),
    Case("empty bag", "retrieve", user(history=[]), pb_user(history=ints(at=(0, 0)))),
    Case("unknown ids in a bag", "retrieve", user(history=[1, 1000]), pb_user(history=ints(1, 1000, at=(0, 2)))),
    Case("dense number", "retrieve", user(hour=7), pb_user(hour=floats(7))),
    Case("dense number as int32", "retrieve", user(hour=7), pb_user(hour=pb.Column(int32s=i32(7)))),
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
    Case("k negative", "retrieve", {"k": -1, **user()}, {"k": -1, **pb_user()}, BAD),
    Case("k over its limit", "retrieve", {"k": 51, **user()}, {"k": 51, **pb_user()}, BAD),
    Case("k huge", "retrieve", {"k": 2**31 - 1, **user()}, {"k": 2**31 - 1, **pb_user()}, BAD),
    Case("nothing told", "retrieve", {}, {}, BAD),
    Case("no feature told", "retrieve", {"features": {}}, {"features": {}}, BAD),
    Case(
        "told twice", "retrieve", {"id": 1000, "vector": [0.5] * 8}, {"ids": ids(1000), "vectors": f32(*[0.5] * 8)}, BAD
    ),
    Case("unknown feature", "retrieve", user(age=3), pb_user(age=ints(3)), BAD),
    Case("required feature missing", "retrieve", {"features": {"hour": 3}}, {"features": {"hour": floats(3)}}, BAD),
    Case("unknown index", "retrieve", {"index": "x", **user()}, {"index": "x", **pb_user()}, GONE),
    Case("unknown attribute", "retrieve", {"attributes": ["x"], **user()}, {"attributes": ["x"], **pb_user()}, BAD),
    Case("unknown model", "retrieve", user(), pb_user(), GONE, model="books"),
    Case("unknown version", "retrieve", user(), pb_user(), GONE, version=7),
    Case("filter", "retrieve", {"filter": {}, **user()}, {"filter": pb.Filter(), **pb_user()}, "UNIMPLEMENTED"),
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
    Case("fraction as id", "retrieve", user(1.5), {"features": {"user": floats(1.5)}}, BAD),
    Case("NaN as id", "retrieve", b'{"features": {"user": NaN}}', {"features": {"user": floats(float("nan"))}}, BAD),
    Case("word where integers are ids", "retrieve", user("ann"), {"features": {"user": texts("ann")}}, BAD),
    Case("number where strings are ids", "retrieve", user(city=1.5), pb_user(city=floats(1.5)), BAD),
    Case("string as number", "retrieve", user(hour="7"), pb_user(hour=texts("7")), BAD),
    Case(
        "NaN as number", "retrieve", b'{"features": {"user": 5, "hour": NaN}}', pb_user(hour=floats(float("nan"))), BAD
    ),
    Case("several values of a single", "retrieve", user([1, 2]), {"features": {"user": ints(1, 2, at=(0, 2))}}, BAD),
    Case("no value of a single", "retrieve", user([]), {"features": {"user": ints(at=(0, 0))}}, BAD),
    Case("word as candidate in a bag", "retrieve", user(history=["x"]), pb_user(history=texts("x", at=(0, 1))), BAD),
    Case(
        "weights where none are taken",
        "retrieve",
        user(history={"ids": [1000], "weights": [1]}),
        pb_user(history=ints(1000, at=(0, 1), weights=(1,))),
        BAD,
    ),
    Case(
        "too many queries",
        "retrieve",
        {"requests": [user(number) for number in range(9)]},
        {"features": {"user": ints(*range(9))}},
        BIG,
    ),
    Case(
        "too many values",
        "retrieve",
        user(history=[1000] * 300),
        pb_user(history=ints(*[1000] * 300, at=(0, 300))),
        BIG,
    ),
    Case(
        "too many exclusions",
        "retrieve",
        {"exclude": [7] * 301, **user()},
        {"exclude_ids": ids(*[7] * 301), **pb_user()},
        BIG,
    ),
    Case("undecodable body", "retrieve", b"{", b"\xff\xff\xff", BAD),
    Case("bytes of the other form", "retrieve", b"\x18\x05", b'{"k": 5}', BAD),
    Case("oversized body", "retrieve", b" " * 16_385, bytes(16_385), BIG),
    Case("vastly oversized body", "retrieve", b" " * 60_000, bytes(60_000), BIG),
)
