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
    "other": {"dtype": "int64"},
    "word": {"dtype": "string"},
    "bag": {"dtype": "int64", "kind": "ragged"},
}
THRESHOLD = 10
HASH = {"ids": {"kind": "hash", "dtype": "int64"}}
LINE = "(test_tables_in_towers.py:"
Call = Callable[[Any, Any], Any]


def gathered(model: Any, f: Any) -> Any:
    return tf.gather(model.items, f["item"])


def gathered_and_hashed(model: Any, f: Any) -> Any:
    ids = tf.strings.to_hash_bucket_fast(f["word"], 5)
    return tf.gather(model.items, f["item"]) + tf.gather(model.items, ids)


def computed(model: Any, f: Any) -> Any:
    return tf.gather(model.items, f["item"] ** 2)


def multiplied(model: Any, f: Any) -> Any:
    return tf.matmul(tf.gather(model.items, f["item"]), model.items, transpose_b=True)


def in_a_condition(model: Any, f: Any) -> Any:
    return tf.cond(
        tf.reduce_sum(f["item"]) > 0,
        lambda: tf.gather(model.items, f["item"]),
        lambda: tf.gather(model.items, f["item"] * 0),
    )


def padded(model: Any, f: Any) -> Any:
    return tf.reduce_sum(tf.nn.embedding_lookup(model.items, f["bag"]).to_tensor(), 1)


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
    "of ids that nothing computes": (computed, 20, {}, False, ("20 rows", "(Pow)", LINE)),
    "read as a whole": (multiplied, 20, {}, False, ("(MatMul)", "by lookups only")),
    "in a condition": (in_a_condition, 20, {}, False, ("(If)", LINE, "outside of tf.cond")),
    "of ragged rows of any length": (padded, 20, {}, False, ("ragged rows", "to_tensor(shape=")),
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
    # Another note is about ragged ids, which go into the tower.
    notes = [note for note in plan.traced.stays if "length_max" not in note]
    assert len(notes) == bool(words)
    assert_says("".join(notes), *words)
