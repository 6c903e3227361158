"""Recipes of models that depend on Keras: its generations, its layers, and what it saves."""

from __future__ import annotations

from tests.cases.models.checkpoints import (
    write_keras_lists,
    write_keras_weights,
    write_nothing,
)
from tests.cases.models.planned_models import Module, variant
from tests.cases.models.recipe_parts import (
    FLOAT,
    ID,
    QUERY,
    STRING,
    candidates,
    method,
    ranking,
    several,
)

EITHER_KERAS = Module(
    "either_keras",
    {"inputs": {"item": ID}, "towers": QUERY, "code": {"table_threshold": 0}},
    {
        "2-of_keras_3": variant("build_2", trained="build_3"),
        "3-of_keras_2": variant("build_3", trained="build_2"),
    },
)


IDS_FOR_STRINGS = {"title": ID, "item": ID}
STRING_INPUTS = Module(
    "string_inputs",
    {
        "inputs": {"title": STRING, "item": ID},
        "towers": QUERY,
        "code": {"table_threshold": 0},
    },
    {
        "2-ids_for_strings": variant("build_2", inputs=IDS_FOR_STRINGS, write=write_nothing),
        "3-strings_for_ids": variant(
            "build_3", inputs={"title": STRING, "item": STRING}, write=write_nothing
        ),
        "hashed-ids_for_strings": variant(
            "build_hashed", inputs=IDS_FOR_STRINGS, write=write_nothing
        ),
    },
)

NORMALIZATIONS = Module(
    "normalizations",
    {"inputs": {"n": several("float32", 2)}, "towers": QUERY},
    {
        "plain_3-of_integers": variant("build_plain_3", inputs={"n": several("int32", 2)}),
    },
)


SLOTS = several("int32", 3)
NUMBERS = {"numbers": several("float32", 2)}
KERAS_3 = Module(
    "keras_3",
    {
        "inputs": {
            "user": {"dtype": "int32"},
            "age": FLOAT,
            "movie": {"dtype": "int32"},
            "genres": SLOTS,
        },
        "towers": method("query", "user", "age")
        | method("candidate", "movie", "genres", role="candidate"),
        "code": {"table_threshold": 1},
        "checkpoint": {},
    },
    {
        "as_second": variant(trained="build"),
        "called": variant(trained="build"),
        "with_more": variant(trained="build"),
        "shorter": variant(trained="build"),
        "query_layers": variant(trained="build"),
        "function": variant(
            trained="build", towers={"query": {"role": "query", "inputs": ["age"]}}
        ),
        "twins": variant(write=write_keras_weights, inputs=NUMBERS, towers=QUERY),
        "left": variant(trained="build_twins", inputs=NUMBERS, towers=method("left")),
        "exchanged": variant(write=write_keras_lists, inputs=NUMBERS, towers=QUERY),
        "ranker": variant(
            write=write_keras_weights,
            inputs={"user": SLOTS, "movie": SLOTS},
            features=candidates("movie"),
            towers=ranking(),
        ),
    },
    write=write_keras_weights,
)


MODULES = (
    EITHER_KERAS,
    STRING_INPUTS,
    NORMALIZATIONS,
    KERAS_3,
)
