"""Recipes of the models in tests/models/ids.py, which compute ids or cannot."""

from __future__ import annotations

from tests.cases.models.checkpoints import write_nothing
from tests.cases.models.planned_models import Module, variant
from tests.cases.models.recipe_parts import ID, QUERY, SPARSE, STRING, several

INPUTS = {
    "item": ID,
    "x": several("int64", 6),
    "n": several("float32", 6),
    "a": ID,
    "b": ID,
    "tags": SPARSE,
    "title": STRING,
}
TEXTS = {"inline_bytes_max": 4000, "table_threshold": 100}
REJECTED = (
    "sine",
    "python",
    "variable",
    "unguarded",
    "filled_beyond",
)
"""Rejected for their ids, whatever a checkpoint holds."""
REJECTED_OF_TEXTS = ("zeroed", "unmasked", "unadapted")

IDS = Module(
    "ids",
    {"inputs": INPUTS, "towers": QUERY, "code": {"inline_bytes_max": 1000}},
    {
        "handmade": variant(code=TEXTS),
        **{name: variant(write=write_nothing) for name in REJECTED},
        **{name: variant(code=TEXTS, write=write_nothing) for name in REJECTED_OF_TEXTS},
        "sine-within_limit": variant("build_sine", code={}),
        "layer-rule_of_the_recipe": variant(
            "build_layer", features={"x": {"ids": {"kind": "hash"}}}
        ),
    },
)
