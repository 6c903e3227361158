"""The requests of `cases` for recommendations with a stage before the ranking. The bundle has one,
which keeps 40 candidates: all of them, unless a request says otherwise.
"""

from __future__ import annotations

from tests.units.service.cases import BAD, Case, user
from tests.units.service.source_cases import sources

_INDEX = {"index": "", "pool_size": 20}
_RECENT = {"name": "recent", "ids": [1000, 1021, 1035, 1273]}
_THREE = [user(1), {**user(2), "exclude_ids": [1021]}, user(3)]

CASES = (
    Case("recommend", "the best of a stage", {"k": 4, "keep": 9, **user()}),
    Case("recommend", "as many of a stage as are wanted", {"k": 4, "keep": 4, **user()}),
    Case("recommend", "more of a stage than there are", {"k": 4, "keep": 4000, **user()}),
    Case("recommend", "without the stage", {"k": 4, "skip_stage": True, **user()}),
    Case("recommend", "with the stage", {"k": 4, "skip_stage": False, "keep": 0, **user()}),
    Case(
        "recommend",
        "a stage of some requests",
        {"k": 3, "pool_size": 18, "keep": 6, "requests": _THREE},
    ),
    Case(
        "recommend",
        "a page of a stage",
        {"k": 3, "offset": 3, "pool_size": 30, "keep": 8, **user()},
    ),
    Case(
        "recommend",
        "crowding, diversity and a formula after a stage",
        {
            "k": 5,
            "keep": 20,
            "crowding": {"studio": 2},
            "diversity": 0.3,
            "formula": "watch + retrieval_score",
            **user(),
        },
    ),
    Case("recommend", "a stage of sources", sources(_INDEX, _RECENT, keep=6)),
    Case(
        "recommend",
        "a minimum of a source after a stage",
        sources(_INDEX, {**_RECENT, "min_count": 3}, keep=5, k=5),
    ),
    Case("recommend", "a negative number to keep", {"keep": -1, **user()}, BAD),
    Case("recommend", "fewer to keep than are wanted", {"k": 5, "keep": 4, **user()}, BAD),
    Case(
        "recommend",
        "fewer to keep than a page",
        {"k": 3, "offset": 6, "pool_size": 30, "keep": 8, **user()},
        BAD,
    ),
    Case(
        "recommend",
        "a page behind what the bundle keeps",
        {"k": 10, "offset": 35, "pool_size": 50, **user()},
        BAD,
    ),
    Case(
        "recommend",
        "a number to keep without the stage",
        {"keep": 9, "skip_stage": True, **user()},
        BAD,
    ),
    Case("recommend", "a tower without a stage", {"tower": "quick", "keep": 9, **user()}, BAD),
    Case(
        "recommend",
        "a stage that is a text",
        {"skip_stage": "yes", **user()},
        BAD,
        {"keep": -1, "context": {}},
    ),
)
