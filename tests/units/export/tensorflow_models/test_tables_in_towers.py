"""Which tables leave the towers, and what the plan says of those that stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.graphs.loading import tf
from tests.units.export.tensorflow_models.planning import (
    Tables,
    assert_says,
    planned,
    written,
)

INPUTS = {
    "item": {"dtype": "int64"},
    "word": {"dtype": "string"},
}
THRESHOLD = 10
HASH = {"ids": {"kind": "hash", "dtype": "int64"}}
Call = Callable[[Any, Any], Any]


def gathered(model: Any, f: Any) -> Any:
    return tf.gather(model.items, f["item"])


def gathered_and_hashed(model: Any, f: Any) -> Any:
    ids = tf.strings.to_hash_bucket_fast(f["word"], 5)
    return tf.gather(model.items, f["item"]) + tf.gather(model.items, ids)


def multiplied(model: Any, f: Any) -> Any:
    return tf.matmul(tf.gather(model.items, f["item"]), model.items, transpose_b=True)


CASES: dict[str, tuple[Call, int, dict[str, Any], bool, tuple[str, ...]]] = {
    "above the threshold": (gathered, THRESHOLD + 1, {}, True, ()),
    "of candidates": (gathered, 5, {"features": {"item": {"role": "candidate"}}}, False, ()),
    "by a rule of the model": (gathered_and_hashed, 5, {}, True, ()),
    "by a rule of the recipe": (gathered, 5, {"features": {"item": HASH}}, True, ()),
    "with a row of the recipe for other ids": (
        gathered,
        5,
        {"features": {"item": {"unknown": {"rule": "row", "row": 1}}}},
        True,
        (),
    ),
    "named in the recipe": (
        gathered,
        5,
        {"tables": {"items": {"key": "model/items/.ATTRIBUTES/VARIABLE_VALUE"}}},
        True,
        (),
    ),
    "read as a whole": (multiplied, 20, {}, False, ("(MatMul)", "by lookups only")),
}
"""How a table is read, how many rows it has, sections of the recipe, whether it leaves the towers,
and words of the note.
"""


@pytest.mark.parametrize(("call", "rows", "sections", "leaves", "words"), CASES.values(), ids=CASES)
def test_table_leaves_the_towers_unless_it_is_small_or_only_a_tower_can_read_it(
    call: Call,
    rows: int,
    sections: dict[str, Any],
    leaves: bool,
    words: tuple[str, ...],
    tmp_path: Path,
) -> None:
    model = Tables(call, items=rows)
    limits = {"table_threshold": THRESHOLD, "inline_bytes_max": rows * 16}
    sections = {"code": limits, **sections}
    plan = planned(
        lambda: Tables(call, items=rows),
        written(tmp_path, model=model),
        INPUTS,
        object_path="model",
        **sections,
    )
    assert (set(plan.traced.spec.tables) == {"items"}) == leaves
    assert len(plan.traced.stays) == bool(words)
    assert_says("".join(plan.traced.stays), *words)
