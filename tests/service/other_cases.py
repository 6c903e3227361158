"""Recommendations, embeddings and lookups that both doors are asked."""

from __future__ import annotations

from tests.service.cases import BAD, BIG, GONE, Case, floats, i32, ids, ints, pb_user, texts, user

OTHERS = (
    Case(
        "recommend",
        "recommend",
        {"k": 5, "attributes": ["title"], **user()},
        {"k": 5, "attributes": ["title"], **pb_user()},
    ),
    Case(
        "recommend, list",
        "recommend",
        {"k": 2, "candidates": 5, "requests": [{**user(1), "exclude": [1000]}, user(2)]},
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
        {"k": 5, "candidates": 2, **user()},
        {"k": 5, "candidates": 2, **pb_user()},
        BAD,
    ),
    Case(
        "recommend, candidates negative",
        "recommend",
        {"candidates": -1, **user()},
        {"candidates": -1, **pb_user()},
        BAD,
    ),
    Case("recommend, no features", "recommend", {}, {}, BAD),
    Case("recommend, candidate feature", "recommend", user(year=1.0), pb_user(year=floats(1)), BAD),
    Case(
        "recommend, too many to rank",
        "recommend",
        {"requests": [user(1), user(2)]},
        {"features": {"user": ints(1, 2)}},
        BIG,
    ),
    Case("recommend, undecodable body", "recommend", b"]", b"\xff", BAD),
    Case("embed", "embed", {"tower": "query", **user()}, {"tower": "query", **pb_user()}),
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
    Case("embed, tower not named", "embed", user(), pb_user(), BAD),
    Case("embed, unknown tower", "embed", {"tower": "x", **user()}, {"tower": "x", **pb_user()}, GONE),
    Case(
        "embed, unknown model",
        "embed",
        {"tower": "query", **user()},
        {"tower": "query", **pb_user()},
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
