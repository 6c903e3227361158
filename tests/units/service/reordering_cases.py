"""The requests of `cases` whose candidates are reordered: by a formula, a minimum score, crowding
and diversity.
"""

from __future__ import annotations

from tests.units.service.cases import BAD, LARGE, NAN, Case, ids, user

CASES = (
    Case(
        "retrieve",
        "a formula of the score and attributes",
        {"formula": "score * 2 - rating + (year - 2000) / 5", **user()},
    ),
    Case(
        "retrieve",
        "a formula over few candidates",
        {"k": 3, "pool_size": 6, "formula": "-score", **user()},
    ),
    Case("retrieve", "a minimum score", {"min_score": 1.0, "k": 40, **user()}),
    Case("retrieve", "crowding", {"k": 12, "crowding": {"studio": 1}, **user()}),
    Case(
        "retrieve",
        "crowding in a list",
        {
            "k": 6,
            "pool_size": 6,
            "crowding": {"studio": 1},
            "requests": [user(1), {**user(2), "exclude_ids": [1000]}],
        },
    ),
    Case("retrieve", "diversity", {"k": 8, "diversity": 0.5, **user()}),
    Case(
        "retrieve",
        "all of these",
        {
            "k": 6,
            "formula": "score + rating",
            "min_score": 0,
            "diversity": 0.3,
            "crowding": {"studio": 2},
            "ids": [1014],
        },
    ),
    Case("retrieve", "a formula of what is no number", {"formula": "title", **user()}, BAD),
    Case("retrieve", "a formula without a value", {"formula": "log(0 * score)", **user()}, BAD),
    Case("retrieve", "fewer candidates than k", {"k": 5, "pool_size": 4, **user()}, BAD),
    Case(
        "retrieve", "too many candidates", {"diversity": 0.5, "requests": [user(1), user(2)]}, LARGE
    ),
    Case("retrieve", "diversity above one", {"diversity": 1.5, **user()}, BAD),
    Case(
        "retrieve",
        "diversity that is no number",
        b'{"diversity": NaN, "ids": [1000]}',
        BAD,
        {"diversity": NAN, "ids": ids([1000])},
    ),
    Case(
        "retrieve",
        "a minimum score that is no number",
        b'{"min_score": NaN, "ids": [1000]}',
        BAD,
        {"min_score": NAN, "ids": ids([1000])},
    ),
    Case(
        "retrieve",
        "crowding of an unknown attribute",
        {"crowding": {"x": 1}, **user()},
        BAD,
    ),
    Case(
        "retrieve",
        "crowding of lists",
        {"crowding": {"genres": 1}, **user()},
        BAD,
    ),
    Case(
        "retrieve",
        "crowding of fractions",
        {"crowding": {"rating": 1}, **user()},
        BAD,
    ),
    Case(
        "retrieve",
        "crowding by truth",
        {"k": 5, "crowding": {"classic": 1}, **user()},
    ),
    Case("retrieve", "a formula of truth", {"formula": "score + 5 * classic", **user()}),
    Case(
        "retrieve",
        "a filter, ids merged, crowding and diversity",
        {
            "k": 6,
            "ids": [1000, 1014],
            "diversity": 0.4,
            "crowding": {"studio": 2},
            "filter": {"year": {"ge": 1995}},
            "exclude_ids": [1105],
        },
    ),
    Case("retrieve", "crowding that leaves none", {"crowding": {"studio": 0}, **user()}, BAD),
    Case(
        "retrieve",
        "crowding by several attributes",
        {"k": 12, "crowding": {"studio": 3, "classic": 4}, **user()},
    ),
    Case(
        "retrieve",
        "crowding by several attributes and diversity",
        {"k": 9, "crowding": {"studio": 2, "classic": 3}, "diversity": 0.4, **user()},
    ),
    Case(
        "recommend",
        "a formula of outputs, the retrieval's score and attributes",
        {"k": 5, "formula": "watch + 0.1 * retrieval_score + year / 100", **user()},
    ),
    Case(
        "recommend",
        "a formula without outputs",
        {"k": 5, "formula": "retrieval_score - year", **user()},
    ),
    Case(
        "recommend",
        "a minimum score, crowding and diversity",
        {
            "k": 6,
            "min_score": -1,
            "diversity": 0.4,
            "crowding": {"studio": 1},
            **user(),
        },
    ),
    Case(
        "recommend",
        "a filter and crowding",
        {
            "k": 5,
            "crowding": {"classic": 2},
            "filter": {"year": {"lt": 2010}},
            **user(),
        },
    ),
    Case("recommend", "diversity below zero", {"diversity": -0.5, **user()}, BAD),
    Case(
        "recommend",
        "crowding of an unknown attribute",
        {"crowding": {"x": 1}, **user()},
        BAD,
    ),
)
