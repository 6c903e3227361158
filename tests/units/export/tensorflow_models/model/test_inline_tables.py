"""Which tables stay inside the towers, and the notes about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.errors import NotConvertible
from export.front_end.specs import FeatureSpec, TableFacts
from export.graphs.loading import tf
from export.graphs.walks import resource
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.lookups.records import (
    MissingRule,
    TracedLookup,
    of_indicator,
    of_table,
)
from export.tensorflow_models.model.inline_tables import find_inline_lookups, find_other_reads
from tests.id_graphs import hash_ids
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers, texts, trace
from tests.units.export.traced_features import embedded
from tests.units.export.traced_models import IDS, tower_recipe

THRESHOLD = 10
BYTES_MAX = 20 * 4 * 4
"""The size of 20 rows."""
PLAIN = embedded("item", "items")
HASHED = embedded("item", "items", ids=hash_ids(5))
COMPUTED = MissingRule("computed by operation 'mul' (Mul) (model.py:7) of the model", "send them")


def job(**sections: Any) -> ExportJob:
    limits = {"table_threshold": THRESHOLD, "inline_bytes_max": BYTES_MAX}
    return tower_recipe("model.py:build", {"item": IDS}, code=limits, **sections)


def table(rows: int, **attributes: Any) -> Any:
    """Returns a variable of four columns, as the exporter makes it while a model is built."""
    with tables_unallocated():
        variable = tf.Variable(tf.zeros([rows, 4]), name="items")
    variable._rowcast_line = "model.py:3"
    for name, value in attributes.items():
        setattr(variable, name, value)
    return variable


def look_up(variable: Any, feature: FeatureSpec | None = PLAIN, **fields: Any) -> TracedLookup:
    """Returns a resolved lookup by `tf.gather`."""
    facts = TableFacts("items", "items", variable.shape[0], 4)
    defaults = {"table": facts, "feature": feature, "gather": True, "line": "model.py:9"}
    return of_table(variable, None, **{**defaults, **fields})


def computed(variable: Any, **fields: Any) -> TracedLookup:
    """Returns a lookup of ids that no rule describes."""
    return look_up(variable, None, missing_rule=COMPUTED, **fields)


@pytest.mark.parametrize(
    ("rows", "fields", "stays"),
    [
        (THRESHOLD, {}, True),
        (THRESHOLD + 1, {}, False),
        (THRESHOLD, {"gather": False}, False),
        (THRESHOLD, {"feature": HASHED}, False),
    ],
    ids=["at the threshold", "above the threshold", "no gather", "by a rule"],
)
def test_small_table_of_plain_gathers_stays(rows: int, fields: dict[str, Any], stays: bool) -> None:
    lookup = look_up(table(rows), **fields)
    assert find_inline_lookups([lookup], [], job(), False) == ({lookup} if stays else set(), ())


@pytest.mark.parametrize(
    ("sections", "stays"),
    [
        ({"features": {"item": {"role": "candidate"}}}, True),
        ({"features": {"item": {"ids": {"kind": "hash", "dtype": "int64"}}}}, False),
        ({"features": {"item": {"unknown": {"rule": "row", "row": 1}}}}, False),
        ({"tables": {"items": {"key": "stored"}}}, False),
    ],
    ids=["role", "ids", "unknown", "table"],
)
def test_small_table_that_the_recipe_describes_leaves(sections: Any, stays: bool) -> None:
    lookup = look_up(table(5))
    assert find_inline_lookups([lookup], [], job(**sections), False)[0] == (
        {lookup} if stays else set()
    )


def test_small_table_with_partitions_by_remainder_leaves() -> None:
    assert find_inline_lookups([look_up(table(5, mod=True))], [], job(), False) == (set(), ())


def test_all_lookups_of_a_table_leave_with_the_one_that_must() -> None:
    shared = table(5)
    other_lookup = look_up(table(5))
    indicator = of_indicator("item", 5, None, feature=PLAIN)
    lookups = [look_up(shared), look_up(shared, HASHED), other_lookup, indicator]
    assert find_inline_lookups(lookups, [], job(), False) == ({other_lookup}, ())


def test_tables_of_plain_gathers_stay_whatever_their_size_if_all_shall() -> None:
    large = look_up(table(1000))
    shared = table(1000)
    leaving = [look_up(shared), look_up(shared, HASHED)]
    missing_rule = computed(shared)
    computed_lookup = computed(large.variable)
    inlined = find_inline_lookups([large, computed_lookup, *leaving, missing_rule], [], job(), True)
    assert inlined == ({large, computed_lookup, missing_rule}, ())


def test_table_of_computed_ids_stays_with_a_note_and_is_restored() -> None:
    large = table(20)
    lookups = [computed(large), look_up(large), look_up(large, HASHED)]
    stay, notes = find_inline_lookups(lookups, [], job(), False)
    assert stay == set(lookups[:2])
    assert notes == (
        "table 'items' of 20 rows (320 B) stays inside the towers: its ids are computed by "
        "operation 'mul' (Mul) (model.py:7) of the model (model.py:9); to take it out, send them",
    )
    assert large.restored is True


def test_note_of_a_table_names_its_line_once() -> None:
    lookup = computed(table(20), line="model.py:7")
    _, (note,) = find_inline_lookups([lookup], [], job(), False)
    assert note.count("(model.py:7)") == 1


@pytest.mark.parametrize("rows", [THRESHOLD, THRESHOLD + 1])
def test_table_of_computed_ids_is_noted_if_it_is_above_the_threshold(rows: int) -> None:
    lookup = computed(table(rows))
    stay, notes = find_inline_lookups([lookup], [], job(), False)
    assert stay == {lookup}
    assert len(notes) == int(rows > THRESHOLD)


def test_table_of_computed_ids_beyond_the_limit_is_rejected() -> None:
    with pytest.raises(NotConvertible) as rejected:
        find_inline_lookups([computed(table(21))], [], job(), False)
    assert str(rejected.value) == (
        "table 'items' of 21 rows (336 B) would stay inside the towers, since its ids are computed "
        "by operation 'mul' (Mul) (model.py:7) of the model (model.py:9), and is larger than "
        "code.inline_bytes_max (320 B) allows; send them; or raise the limit"
    )


READ = MissingRule("tower 'tower' reads it by operation 'MatMul'", "")
READ_IN_A_LOOP = MissingRule("tower 'tower' reads it by operation 'While'", "read it outside")


def test_gathered_table_that_a_tower_reads_otherwise_stays_with_a_note() -> None:
    large = table(20)
    lookup = look_up(large)
    stay, notes = find_inline_lookups([lookup], [(large, READ)], job(), False)
    assert stay == {lookup}
    assert notes == (
        "table 'items' of 20 rows (320 B) stays inside the towers: tower 'tower' reads it by "
        "operation 'MatMul'; to take it out, read it by lookups only",
    )


def test_computed_ids_are_the_reason_before_other_reads() -> None:
    large = table(20)
    _, (note,) = find_inline_lookups([computed(large)], [(large, READ)], job(), False)
    assert "its ids are computed" in note


def test_variable_that_a_tower_reads_otherwise_is_noted_if_it_is_read_by_rows() -> None:
    note = (
        "variable 'items' [20, 4] (model.py:3) (320 B) stays inside the towers: tower 'tower' "
        "reads it by operation 'While'; to take it out, read it outside"
    )
    large = table(20)
    assert find_inline_lookups([], [(large, READ_IN_A_LOOP)], job(), False) == (set(), (note,))
    assert find_inline_lookups([], [(large, READ)], job(), False) == (set(), ())
    # The note is about the last of several reads.
    reads = [(large, READ), (large, READ_IN_A_LOOP)]
    assert find_inline_lookups([], reads, job(), False) == (set(), (note,))
    small = table(THRESHOLD)
    assert find_inline_lookups([], [(small, READ_IN_A_LOOP)], job(), False) == (set(), ())


@pytest.mark.parametrize(
    ("read", "cure"),
    [
        (READ, "look rows up outside of tf.cond, tf.map_fn and loops"),
        (READ_IN_A_LOOP, "read it outside"),
    ],
)
def test_variable_that_a_tower_reads_beyond_the_limit_is_rejected(
    read: MissingRule, cure: str
) -> None:
    with pytest.raises(NotConvertible) as rejected:
        find_inline_lookups([], [(table(21), read)], job(), False)
    assert str(rejected.value) == (
        f"variable 'items' [21, 4] (model.py:3) (336 B) would stay inside the towers, since "
        f"{read.reason}, and is larger than code.inline_bytes_max (320 B) allows; {cure}; or raise "
        "the limit"
    )


FIXED = (
    "give the lookup as many ids of each example, as to_tensor(shape=[None, LENGTH]) does, or "
    "ragged ones"
)
WORDS = "let TextVectorization have an output_sequence_length, or average the rows of its words"


@pytest.mark.parametrize(
    ("read", "by", "cure"),
    [
        pytest.param(
            lambda items, features: tf.matmul(features["x"], items),
            "'MatMul' (MatMul)",
            "",
            id="product",
        ),
        pytest.param(
            lambda items, features: tf.matmul(
                tf.cast(features["x"], tf.float64),
                tf.transpose(tf.cast(tf.identity(items), tf.float64)),
                transpose_b=True,
            ),
            "'MatMul' (MatMul)",
            "",
            id="moved",
        ),
        pytest.param(
            lambda items, features: tf.identity(items), "'Identity' (Identity)", "", id="result"
        ),
        pytest.param(
            lambda items, features: tf.raw_ops.ResourceGather(
                resource=items.handle, indices=features["item"], dtype=tf.float32
            ),
            "'ResourceGather' (ResourceGather)",
            FIXED,
            id="gather",
        ),
        pytest.param(
            lambda items, features: tf.raw_ops.ResourceGather(
                resource=items.handle,
                indices=tf.strings.length(tf.strings.split(features["text"]).values),
                dtype=tf.float32,
            ),
            "'ResourceGather' (ResourceGather)",
            WORDS,
            id="gather of words",
        ),
        pytest.param(
            lambda items, features: tf.cond(
                tf.size(features["item"]) > 0, lambda: items + 1.0, lambda: items * 2.0
            ),
            "'cond' (If)",
            "look rows up outside of tf.cond, tf.map_fn and loops",
            id="condition",
        ),
    ],
)
def test_other_reads_of_a_table_name_operation_line_and_cure(
    read: Callable[[Any, Any], Any], by: str, cure: str
) -> None:
    items = table(20)
    other_variable = tf.Variable(tf.ones([20, 4]))

    def call(features: Any) -> dict[str, Any]:
        return {"found": read(items, features), "other": tf.reduce_sum(other_variable)}

    traced = trace(call, x=numbers(20), item=ids(), text=texts())
    reads = find_other_reads(
        "tower",
        traced.results.values(),
        [],
        traced.function.graph,
        {resource(items.handle): items},
    )
    ((variable, missing_rule),) = reads
    assert variable is items
    assert missing_rule.reason.startswith(
        f"tower 'tower' reads it by operation {by} (test_inline_tables.py:"
    )
    assert missing_rule.cure.startswith(cure)
    assert bool(missing_rule.cure) == bool(cure)
