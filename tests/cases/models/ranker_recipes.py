"""Recipes of rankers."""

from __future__ import annotations

from tests.cases.models.checkpoints import write_session
from tests.cases.models.planned_models import Module, variant
from tests.cases.models.recipe_parts import (
    FLOAT,
    ID,
    RAGGED,
    SPARSE,
    STRING,
    Part,
    candidates,
    ranking,
    several,
    two_towers,
    weights,
)

SIDES = {"user": ID, "history": RAGGED, "item": ID, "shop": ID}
OF_EXPERTS = ("click", "like", "share", "both", "loyal")


def numbered(letter: str, count: int) -> Part:
    """Returns the inputs of many features."""
    return {f"{letter}{number}": ID for number in range(count)}


RANKERS = Module(
    "rankers",
    {
        "inputs": SIDES,
        "features": candidates("item", "shop"),
        "towers": ranking("click", "like"),
    },
    {
        "experts": variant(inputs={**SIDES, "age": FLOAT}, towers=ranking(*OF_EXPERTS)),
        "crossed": variant(towers=ranking("score")),
        "crossed-whole": variant("build_crossed", towers=ranking("score", split=False)),
        "wide": variant(
            inputs={**numbered("c", 90), "item": ID, "age": FLOAT},
            features=candidates("item"),
            towers=ranking("score"),
        ),
        "recurrent": variant(
            inputs={"history": RAGGED, "item": ID},
            features=candidates("item"),
            towers=ranking("score"),
        ),
        "stack": variant(
            inputs={**numbered("s", 12), "age": FLOAT},
            features=candidates("s11"),
            towers=ranking("score"),
        ),
        "joined": variant(
            inputs={**numbered("c", 40), "item": ID},
            features=candidates("item"),
            towers=ranking("score"),
        ),
    },
)

ATTENTION_OVER_LOOKUPS = Module(
    "attention_over_lookups",
    {
        "inputs": {"history": several("int64", 6), "item": ID},
        "features": candidates("item"),
        "towers": ranking(),
        "code": {"table_threshold": 0},
    },
)

TUTORIALS = Module(
    "tutorials",
    {
        "inputs": {"user_id": STRING, "timestamp": FLOAT, "movie_title": STRING},
        "features": candidates("movie_title"),
        "towers": two_towers() | ranking("score"),
    },
    others=("MovielensModel",),
)

TF1 = Module(
    "tf1",
    {
        "inputs": {
            "user": ID,
            "city": STRING,
            "kind": several("string", 3),
            "tags": SPARSE,
            "tags_weights": weights("tags", "sparse"),
            "seen": several("int64", 5),
            "liked": several("int32", 1),
            "years": several("float32", 1),
            "ad": ID,
            "zone": several("int64", 2),
            "shop": ID,
        },
        "features": candidates("ad", "zone", "shop"),
        "towers": ranking("click", "buy"),
        "checkpoint": {},
    },
    {"with_behavior_of_tf1": variant(trained="build", write=write_session)},
    write=write_session,
)

MODULES = (RANKERS, ATTENTION_OVER_LOOKUPS, TUTORIALS, TF1)
