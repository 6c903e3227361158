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
    candidates,
    ranking,
    several,
    two_towers,
    weights,
)

SIDES = {"user": ID, "history": RAGGED, "item": ID, "shop": ID}
OF_EXPERTS = ("click", "like", "share", "both", "loyal")


RANKERS = Module(
    "rankers",
    {
        "inputs": SIDES,
        "features": candidates("item", "shop"),
        "towers": ranking("click", "like"),
    },
    {
        "experts": variant(inputs={**SIDES, "age": FLOAT}, towers=ranking(*OF_EXPERTS)),
        "recurrent": variant(
            inputs={"history": RAGGED, "item": ID},
            features=candidates("item"),
            towers=ranking("score"),
        ),
        "joined": variant(
            inputs=dict.fromkeys([*(f"c{number}" for number in range(40)), "item"], ID),
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
