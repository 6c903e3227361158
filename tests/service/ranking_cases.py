"""Rankings that both doors are asked."""

from __future__ import annotations

from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.cases import BAD, BIG, GONE, Case, f32, floats, i32, ids, ints, texts

FILM = {"movie": [1000, 1007], "genres": [["drama"], []], "year": [0.5, 0.25]}
PB_FILM = {
    "movie": ints(1000, 1007),
    "genres": texts("drama", at=(0, 1, 1)),
    "year": floats(0.5, 0.25),
}

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
    Case(
        "weights whose sum overflows",
        "rank",
        {"context": {"user": 5, "liked": {"ids": [1000] * 4, "weights": [3e38] * 4}}, "candidates": [1000]},
        {
            "context": {"user": ints(5), "liked": ints(*[1000] * 4, at=(0, 4), weights=(3e38,) * 4)},
            "candidate_ids": ids(1000),
        },
        BAD,
    ),
    Case("empty body", "rank", b"", b"", BAD),
)
