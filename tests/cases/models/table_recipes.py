"""Recipes of models that differ in how they look tables up."""

from __future__ import annotations

from typing import Any

from tests.cases.models.checkpoints import write_nothing, write_objects_and_keras_rs_tables
from tests.cases.models.planned_models import Module, variant
from tests.cases.models.recipe_parts import (
    FLOAT,
    ID,
    PAIR,
    QUERY,
    RAGGED,
    SPARSE,
    candidates,
    method,
    query,
    ranking,
    several,
    two_towers,
    weights,
)

ONE_TABLE = Module(
    "one_table",
    {"inputs": {"item": ID}, "towers": QUERY},
    {
        "terabyte": variant(trained="build_plain"),
        "raises": variant(write=write_nothing),
        "wants_another_input": variant(write=write_nothing),
        "root_of_positive": variant(inputs={"item": ID, "age": FLOAT}),
        "root_of_negative": variant(inputs={"item": ID, "age": FLOAT}),
        "plain-of_numbers": variant("build_plain", inputs={"item": FLOAT}, write=write_nothing),
        "plain-of_matrices": variant(
            "build_plain", inputs={"item": several("int64", 2, 2)}, write=write_nothing
        ),
        "plain-other_call": variant("build_plain", towers=method("score"), write=write_nothing),
        "plain-named_output": variant("build_plain", towers=query("vector"), write=write_nothing),
        "plain-ranked_by_vectors": variant(
            "build_plain", features=candidates("item"), towers=ranking()
        ),
        "plain-without_candidates": variant("build_plain", towers=ranking()),
        "plain-no_checkpoint_of_it": variant("build_plain", write=write_nothing),
    },
)

MOVIES = {
    "user_id": ID,
    "history": RAGGED,
    "hour": ID,
    "movie_id": ID,
    "genres": RAGGED,
    "year": FLOAT,
}
OF_TWO_LAYERS: dict[str, Any] = {"inputs": PAIR, "features": {}}
TWO_TOWERS = Module(
    "two_towers",
    {
        "inputs": MOVIES,
        "features": candidates("movie_id", "genres", "year"),
        "towers": two_towers() | ranking("score"),
    },
    {
        "movies_without_head": variant(trained="build_movies"),
        "movies-rules_of_the_recipe": variant(
            "build_movies",
            features={
                "user_id": {"ids": {"kind": "hash", "buckets": 50}},
                "history": {"default": []},
                "hour": {"unknown": {"rule": "refuse"}},
                "movie_id": {"role": "candidate", "unknown": {"rule": "row", "row": 3}},
                "genres": {"role": "candidate", "ids": {"kind": "hash", "dtype": "string"}},
                "year": {"role": "candidate", "default": 1990.0},
            },
        ),
        "movies-matrices_of_users": variant(
            "build_movies",
            inputs={**MOVIES, "user_id": several("int64", 2, 2)},
            write=write_nothing,
        ),
        "two_layers": variant(
            write=write_nothing,
            towers=method("query", "user") | method("candidate", "item", role="candidate"),
            **OF_TWO_LAYERS,
        ),
        "two_layers-tuple": variant("build_two_layers", towers=method("pair"), **OF_TWO_LAYERS),
        "two_layers-two_arguments": variant(
            "build_two_layers", towers=QUERY, write=write_nothing, **OF_TWO_LAYERS
        ),
        "two_layers-wrong_key": variant(
            "build_two_layers", towers=method("wrong_key"), write=write_nothing, **OF_TWO_LAYERS
        ),
    },
)

ADS = {
    "ad": ID,
    "clicks": {"dtype": "int32", "kind": "ragged"},
    "click_weights": weights("clicks", "ragged"),
    "recent": RAGGED,
    "words": SPARSE,
    "word_weights": weights("words", "sparse"),
    "slots": several("int64", 2),
}
AD = candidates("ad")
UNDECLARED = {**ADS, "click_weights": {"dtype": "float32", "kind": "ragged"}}
BAG = {"item": ID, "bag": RAGGED, "weights": weights("bag", "ragged"), "recent": RAGGED}
MID_LEVEL = Module(
    "mid_level",
    {"inputs": BAG, "towers": QUERY},
    {
        "ads": variant(
            inputs=ADS, features=AD, towers=method("context") | ranking("click", call="rank")
        ),
        "ads-undeclared_weights": variant(
            "build_ads", inputs=UNDECLARED, towers=method("context"), write=write_nothing
        ),
        "v0": variant(trained="build_serving"),
        "v2": variant(trained="build_serving"),
        "serving-place": variant(
            "build_serving", inputs={**BAG, "item": several("int64", 2)}, towers=method("placed")
        ),
    },
)

LOOKUPS = Module(
    "lookups",
    {"towers": QUERY},
    {
        "keras_2": variant(inputs={"item": several("float32", 1), "recent": several("int32", 3)}),
        "partial": variant(inputs={"small": ID, "large": RAGGED}, code={"table_threshold": 10}),
        "partial-bags": variant(
            "build_partial", inputs={"small": RAGGED, "large": RAGGED}, write=write_nothing
        ),
        "keras_rs": variant(
            write=write_objects_and_keras_rs_tables,
            inputs={
                "item": several("int64", 1),
                "recent": several("int64", 3),
                "tags": RAGGED,
                "words": SPARSE,
            },
            tables={
                f"embedding.{name}": {"key": f"{name}/.ATTRIBUTES/VARIABLE_VALUE"}
                for name in ("items", "tags")
            },
        ),
    },
)

SHAPES = Module(
    "shapes",
    {"inputs": {"item": ID}, "towers": QUERY},
    {
        "reads_early": variant(inputs={"item": several("int64", 1)}),
        "unknown_shape": variant(write=write_nothing),
    },
)

SHARED_CALL = Module(
    "shared_call",
    {
        "inputs": {**PAIR, "hour": ID},
        "features": candidates("item"),
        "code": {"table_threshold": 100},
        "towers": two_towers() | ranking("score"),
    },
)

MODULES = (ONE_TABLE, TWO_TOWERS, MID_LEVEL, LOOKUPS, SHAPES, SHARED_CALL)
