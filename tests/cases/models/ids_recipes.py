"""Recipes of the models in tests/models/ids.py, which compute ids in every way."""

from __future__ import annotations

from tests.cases.models.checkpoints import write_nothing
from tests.cases.models.planned_models import Module, variant
from tests.cases.models.recipe_parts import FLOAT, ID, QUERY, RAGGED, SPARSE, STRING, several

INPUTS = {
    "city": STRING,
    "city_2": STRING,
    "item": ID,
    "shop": ID,
    "small": {"dtype": "int32"},
    "few": ID,
    "age": FLOAT,
    "place": FLOAT,
    "one": several("string", 1),
    "other": several("string", 1),
    "words": several("string", 3),
    "several": several("int64", 3),
    "few_pair": several("int64", 2),
    "x": several("int64", 6),
    "n": several("float32", 6),
    "a": ID,
    "b": ID,
    "bag": RAGGED,
    "tags": SPARSE,
    "title": STRING,
}
TITLES = {"titles": several("string", 1)}
TEXTS = {"inline_bytes_max": 4000, "table_threshold": 100}
OF_TEXTS = ("titles", "titles_3", "handmade", "unknown_word")
REJECTED = (
    "sine",
    "python",
    "encoded",
    "variable",
    "unguarded",
    "text",
    "filled_beyond",
)
"""Rejected for their ids, whatever a checkpoint holds."""
REJECTED_OF_TEXTS = (
    "unmasked",
    "unicode",
    "separated",
    "zeroed",
    "zeroed_unknown",
    "unadapted",
)

IDS = Module(
    "ids",
    {"inputs": INPUTS, "towers": QUERY, "code": {"inline_bytes_max": 1000}},
    {
        **{name: variant(code=TEXTS) for name in OF_TEXTS},
        **{name: variant(inputs=TITLES, code=TEXTS) for name in ("functional", "functional_3")},
        **{name: variant(write=write_nothing) for name in REJECTED},
        **{name: variant(code=TEXTS, write=write_nothing) for name in REJECTED_OF_TEXTS},
        "weighted_text": variant(inputs=INPUTS | {"age": FLOAT | {"weights_for": "city"}}),
        "crossed": variant(),
        "padded": variant(),
        "squared": variant(),
        "narrow": variant(),
        "multiplied": variant(),
        "sine-within_limit": variant("build_sine", code={}),
        "encoded-within_limit": variant("build_encoded", code={}),
        "layer-rule_of_the_recipe": variant(
            "build_layer", features={"x": {"ids": {"kind": "hash"}}}
        ),
    },
)
