"""What a model computes just within each rule, and what is just beyond it: a rule for the latter
would give other rows than the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bundle.format.manifest import (
    BucketIds,
    Cast,
    ChainedIds,
    ComputedIds,
    HashIds,
    IdOperation,
    IdRule,
    Unknown,
    VocabularyIds,
)
from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values
from export.tensorflow_models.id_rules import buckets
from export.tensorflow_models.id_rules.chains import find_chain
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.rules import find_ids
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, texts, trace

Change = Callable[[Any], Any]
ROWS = 50
INPUTS = {
    "x": ids(),
    "y": ids(),
    "small": tf.TensorSpec([None], tf.int32),
    "pair": ids(2),
    "number": numbers(),
    "other_number": numbers(),
    "city": texts(),
    "other_city": texts(),
}
TO_INT32 = Cast(of="int64", to="int32")
WRAP = ("int32", None)


def int64(value: int) -> Any:
    return tf.constant(value, tf.int64)


def hashed(values: Any) -> Any:
    strings = values if values.dtype == tf.string else tf.strings.as_string(values)
    return tf.strings.to_hash_bucket_fast(strings, ROWS)


def strongly_hashed(values: Any) -> Any:
    return tf.strings.to_hash_bucket_strong(values, 4, [1, 2])


def table_of(
    keys: list[str] | list[bytes] | list[int], positions: list[int], default: int = -1
) -> Any:
    initial = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, tf.int64 if isinstance(keys[0], int) else tf.string),
        tf.constant(positions, tf.int64),
    )
    return tf.lookup.StaticHashTable(initial, default)


LISTED = table_of([10, 20, 30], [6, 7, 8])
DEFAULT_3 = table_of([10, 20, 30], [6, 7, 8], 3)
CITIES = table_of(["red", "blue"], [4, 5])
DECIMALS = table_of(["10", "-20"], [0, 1])
NOT_DECIMAL = table_of(["10", "020"], [0, 1])
MINUS_0 = table_of(["10", "-0"], [0, 1])
EMPTY = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
WITH_A_GAP = table_of([10, 20], [0, 2])
FROM_MINUS_1 = table_of(["", "red"], [-1, 0])
LATIN_1 = table_of([b"\xe9", b"red"], [0, 1])
DECIMALS_OF_64_BITS = table_of([str(-(1 << 63)), str((1 << 63) - 1)], [0, 1])
OF_65_BITS = table_of([str(1 << 63), "1"], [0, 1])
OF_65_BITS_BELOW_0 = table_of([str(-(1 << 63) - 1), "1"], [0, 1])


def computed(*steps: tuple[str, int | None]) -> ComputedIds:
    operations = [IdOperation.model_validate({"do": do, "by": by}) for do, by in steps]
    return ComputedIds(operations=tuple(operations))


def listed_or(beyond: Change, table: Any = LISTED, name: str = "x") -> Change:
    """Returns ids in a vocabulary, and what is computed of all others."""

    def rows(features: Any) -> Any:
        found = table.lookup(features[name])
        return tf.where(tf.equal(found, -1), beyond(features), found)

    return rows


def found(change: Change, rows: int | None) -> ResolvedIds | Values:
    traced = trace(lambda features: {"ids": change(features)}, **INPUTS)
    return find_ids(Values(traced.results["ids"]), traced.calls, rows)


@pytest.mark.parametrize(
    ("change", "rows", "rule", "cast"),
    [
        # Integers wrap around at 32 bits, which another rule notices and no row of a table does.
        (lambda f: f["small"] + 1, None, computed(("add", 1), WRAP), None),
        (lambda f: f["small"] - 1, None, computed(("add", -1), WRAP), None),
        (lambda f: f["small"] % 9 + 1, None, computed(("remainder", 9), ("add", 1)), None),
        (lambda f: tf.minimum(f["small"], 9), None, computed(("at_most", 9)), None),
        (lambda f: tf.maximum(f["small"], 9), None, computed(("at_least", 9)), None),
        (lambda f: tf.cast(f["x"] + 1, tf.int32), None, computed(("add", 1), WRAP), None),
        (lambda f: tf.cast(f["x"] + 1, tf.int32), ROWS, computed(("add", 1)), None),
        (lambda f: tf.cast(f["x"] % 9, tf.int32), None, computed(("remainder", 9)), None),
        (lambda f: tf.cast(hashed(f["x"]), tf.int32), None, HashIds(buckets=ROWS), None),
        (lambda f: tf.cast(f["small"], tf.int64), None, None, None),
        (lambda f: hashed(tf.cast(f["small"], tf.int64)), ROWS, HashIds(buckets=ROWS), None),
        (lambda f: hashed(tf.cast(f["x"], tf.int32)), ROWS, HashIds(buckets=ROWS), TO_INT32),
        (
            lambda f: hashed(tf.cast(f["pair"], tf.int32)[:, 1]),
            ROWS,
            HashIds(buckets=ROWS),
            TO_INT32,
        ),
        # Neither copies nor casts to more bits wrap around.
        (lambda f: hashed(tf.identity(f["x"])), ROWS, HashIds(buckets=ROWS), None),
        (
            lambda f: hashed(tf.cast(tf.reshape(f["small"], [-1]), tf.int64)),
            ROWS,
            HashIds(buckets=ROWS),
            None,
        ),
        # One operand is a constant: which, matters to differences.
        (lambda f: 10 + f["x"], ROWS, computed(("add", 10)), None),
        (lambda f: f["x"] - 10, ROWS, computed(("add", -10)), None),
        (lambda f: 10 - f["x"], ROWS, computed(("multiply", -1), ("add", 10)), None),
        (lambda f: 10 * f["x"], ROWS, computed(("multiply", 10)), None),
        (lambda f: f["x"] // 10, ROWS, computed(("divide", 10)), None),
        (lambda f: f["x"] // 1, ROWS, computed(("divide", 1)), None),
        (lambda f: f["x"] + tf.int64.max, ROWS, computed(("add", (1 << 63) - 1)), None),
        (lambda f: -f["x"], ROWS, computed(("multiply", -1)), None),
        (lambda f: tf.abs(f["x"]), ROWS, computed(("absolute", None)), None),
        (
            lambda f: tf.raw_ops.ClipByValue(
                t=f["x"], clip_value_min=int64(2), clip_value_max=int64(9)
            ),
            ROWS,
            computed(("at_most", 9), ("at_least", 2)),
            None,
        ),
        # Numbers that are rounded once.
        (
            lambda f: tf.cast(f["number"], tf.int32),
            ROWS,
            None,
            Cast(of="float32", to="int32"),
        ),
        (
            lambda f: tf.cast(tf.math.ceil(f["number"]), tf.int64),
            ROWS,
            None,
            Cast(of="float32", to="int64", rounding="up"),
        ),
        # Hashes are shifted up.
        (lambda f: hashed(f["x"]) + 3, ROWS + 3, HashIds(buckets=ROWS, first_row=3), None),
        (lambda f: 3 + hashed(f["x"]), ROWS + 3, HashIds(buckets=ROWS, first_row=3), None),
        # A mask is one id of the same input, and its row is 0.
        (
            lambda f: tf.where(tf.equal(f["x"], 5), int64(0), hashed(f["x"])),
            ROWS,
            HashIds(buckets=ROWS, mask=5),
            None,
        ),
        (
            lambda f: tf.where(tf.equal(f["city"], "-"), int64(0), hashed(f["city"])),
            ROWS,
            HashIds(buckets=ROWS, mask="-"),
            None,
        ),
        # Floats hold integers up to a limit.
        (
            lambda f: tf.cast(tf.cast(f["x"] + 1, tf.float32), tf.int32),
            1 << 24,
            computed(("add", 1)),
            None,
        ),
    ],
)
def test_computation_within_a_rule_is_that_rule(
    change: Change, rows: int | None, rule: IdRule | None, cast: Cast | None
) -> None:
    resolved = found(change, rows)
    assert isinstance(resolved, ResolvedIds)
    assert (resolved.rule, resolved.cast, resolved.unknown) == (rule, cast, None)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        # Two operands that are not constant.
        (lambda f: f["x"] * f["y"], ROWS),
        (lambda f: hashed(f["x"]) + f["y"], ROWS),
        # Constants that an operation of a rule cannot have.
        (lambda f: 10 // f["x"], ROWS),
        (lambda f: 10 % f["x"], ROWS),
        (lambda f: f["x"] // -3, ROWS),
        (lambda f: f["x"] % 0, ROWS),
        (lambda f: f["x"] + tf.int64.min, ROWS),
        (
            lambda f: tf.raw_ops.ClipByValue(
                t=tf.fill(tf.shape(f["x"]), int64(5)),
                clip_value_min=f["x"],
                clip_value_max=tf.fill(tf.shape(f["x"]), int64(9)),
            ),
            ROWS,
        ),
        (lambda f: f["number"] + 1.0, None),
        (lambda f: tf.nn.relu(f["x"]), ROWS),
        # Strings that are not the decimals of integers.
        (lambda f: hashed(f["number"]), ROWS),
        (lambda f: hashed(tf.strings.as_string(f["x"], width=3)), ROWS),
        (lambda f: hashed(tf.strings.as_string(f["x"], fill="+")), ROWS),
        (lambda f: hashed(tf.strings.as_string(f["x"], fill=" ")), ROWS),
        (lambda f: hashed(tf.strings.lower(f["city"])), ROWS),
        # Masks of another row, of other ids, or of a comparison that is no equality.
        (lambda f: tf.where(tf.equal(f["x"], 5), int64(1), hashed(f["x"])), ROWS),
        (lambda f: tf.where(tf.equal(f["x"], 5), hashed(f["x"]), int64(0)), ROWS),
        (lambda f: tf.where(tf.greater(f["x"], 5), int64(0), hashed(f["x"])), ROWS),
        (lambda f: tf.where(tf.equal(f["y"], 5), int64(0), hashed(f["x"])), ROWS),
        (lambda f: tf.where(tf.equal(f["other_city"], "-"), int64(0), hashed(f["city"])), ROWS),
        (lambda f: tf.where(tf.equal(f["x"], 5), int64(0), f["x"] % 9), ROWS),
        (lambda f: tf.where(tf.equal(f["x"], 5), int64(0), f["x"]), ROWS),
        (
            lambda f: tf.where(
                tf.equal(f["x"], 5),
                int64(0),
                tf.where(tf.equal(f["x"], 6), int64(0), hashed(f["x"])),
            ),
            ROWS,
        ),
        (
            lambda f: tf.where(
                tf.equal(tf.cast(f["x"], tf.float32), 5.5), int64(0), hashed(f["x"])
            ),
            ROWS,
        ),
        # No request holds a string that is not in UTF-8.
        (lambda f: tf.where(tf.equal(f["city"], b"\xe9"), int64(0), hashed(f["city"])), ROWS),
        # 2 ** 32 + 5 is not 5 until it is cast, nor is 5.5 before it is rounded.
        (
            lambda f: tf.where(tf.equal(f["x"], 5), int64(0), hashed(tf.cast(f["x"], tf.int32))),
            ROWS,
        ),
        (
            lambda f: tf.where(
                tf.equal(tf.cast(f["number"], tf.int64), 5),
                int64(0),
                hashed(tf.cast(tf.floor(f["number"]), tf.int64)),
            ),
            ROWS,
        ),
        # Floats that hold too few integers, and floats that are no integers.
        (lambda f: tf.cast(tf.cast(f["x"] + 1, tf.float32), tf.int32), (1 << 24) + 1),
        (lambda f: tf.cast(tf.cast(f["x"] + 1, tf.float32), tf.int32), None),
        (lambda f: tf.cast(tf.cast(f["number"], tf.float16), tf.int32), ROWS),
    ],
)
def test_computation_beyond_every_rule_has_none(change: Change, rows: int | None) -> None:
    resolved = found(change, rows)
    assert not isinstance(resolved, ResolvedIds) or isinstance(resolved.rule, BucketIds)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f, narrow: narrow(f["x"]), id="row"),
        pytest.param(lambda f, narrow: narrow(f["x"]) + 1, id="sum"),
        pytest.param(lambda f, narrow: hashed(narrow(f["x"])), id="hash"),
        pytest.param(lambda f, narrow: LISTED.lookup(narrow(f["x"])), id="vocabulary"),
        pytest.param(lambda f, narrow: narrow(f["number"]), id="number"),
        pytest.param(lambda f, narrow: narrow(f["number"] * 0.5), id="product of a number"),
        pytest.param(lambda f, narrow: narrow(tf.cast(f["x"], tf.float32)), id="float and back"),
    ],
)
def test_integers_that_wrap_around_at_few_bits_have_no_rule(change: Any, dtype: Any) -> None:
    def narrow(values: Any) -> Any:
        return tf.cast(tf.cast(values, dtype), tf.int64)

    resolved = found(lambda features: change(features, narrow), 1 << 8)
    assert not isinstance(resolved, ResolvedIds)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32])
def test_arithmetic_of_few_bits_has_no_rule(dtype: Any) -> None:
    resolved = found(lambda f: tf.cast(tf.cast(f["x"], dtype) * 3, tf.int64), ROWS)
    assert not isinstance(resolved, ResolvedIds)


def inside(values: Any, first: Any = 0, end: Any = ROWS) -> Any:
    return tf.logical_and(values >= first, values < end)


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda f: tf.where(inside(f["x"]), f["x"], int64(7)), 7),
        (lambda f: tf.where(f["x"] >= 0, f["x"], int64(7)), 7),
        (lambda f: tf.where(f["x"] < ROWS, f["x"], int64(7)), 7),
        (lambda f: tf.where(f["x"] < 0, int64(7), f["x"]), 7),
        (
            lambda f: tf.where(tf.logical_or(f["x"] < 0, f["x"] >= ROWS), int64(ROWS - 1), f["x"]),
            ROWS - 1,
        ),
        (lambda f: tf.where(tf.not_equal(f["x"], -1), f["x"], int64(7)), 7),
        (lambda f: tf.where(tf.not_equal(f["x"], ROWS), f["x"], int64(0)), 0),
        (lambda f: tf.where(tf.equal(f["x"], -1), int64(7), f["x"]), 7),
        (lambda f: tf.where(inside(f["small"]), f["small"], 7), 7),
        (
            lambda f: tf.where(
                inside(tf.cast(f["number"], tf.int32)), tf.cast(f["number"], tf.int32), 7
            ),
            7,
        ),
        (lambda f: tf.where(f["x"] < 0, int64(7), tf.where(f["x"] >= ROWS, int64(7), f["x"])), 7),
        # A row that the table lacks is none of unknown ids.
        (lambda f: tf.where(f["x"] >= 0, f["x"], int64(ROWS)), None),
        (lambda f: tf.where(f["x"] >= 0, f["x"], int64(-1)), None),
    ],
)
def test_row_of_ids_outside_the_table_is_that_of_unknown_ids(
    change: Change, row: int | None
) -> None:
    resolved = found(change, ROWS)
    assert isinstance(resolved, ResolvedIds)
    unknown = None if row is None else Unknown(rule="row", row=row)
    assert (resolved.rule, resolved.unknown) == (None, unknown)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda f: tf.where(inside(f["x"], 1), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(inside(f["x"], 0, ROWS - 1), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(inside(f["x"]), int64(7), f["x"]), ROWS),
        (lambda f: tf.where(inside(f["y"]), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(inside(f["x"]), f["x"], int64(7)), None),
        (lambda f: tf.where(inside(f["x"]), hashed(f["x"]), int64(7)), ROWS),
        (lambda f: tf.where(tf.logical_not(f["x"] < 0), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(tf.not_equal(f["x"], 0), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(tf.not_equal(f["x"], ROWS - 1), f["x"], int64(7)), ROWS),
        (lambda f: tf.where(tf.not_equal(f["x"], f["y"]), f["x"], int64(7)), ROWS),
        # Ids below the table have another row than those beyond it.
        (
            lambda f: tf.where(
                f["x"] < 0, int64(0), tf.where(f["x"] >= ROWS, int64(ROWS - 1), f["x"])
            ),
            ROWS,
        ),
        (
            lambda f: tf.where(
                f["x"] < ROWS, tf.where(f["x"] < 0, int64(0), f["x"]), int64(ROWS - 1)
            ),
            ROWS,
        ),
        # -0.5 is outside, and is cast to 0, which is not.
        (lambda f: tf.where(inside(f["number"]), tf.cast(f["number"], tf.int32), 7), ROWS),
        (
            lambda f: tf.where(
                inside(tf.cast(f["number"], tf.int32)),
                tf.cast(tf.floor(f["number"]), tf.int32),
                7,
            ),
            ROWS,
        ),
    ],
)
def test_row_of_other_ids_is_not_that_of_unknown_ids(change: Change, rows: int | None) -> None:
    assert not isinstance(found(change, rows), ResolvedIds)


@pytest.mark.parametrize(
    ("change", "row"),
    [
        pytest.param(lambda x: tf.where(inside(x), x, int64(7)), 7, id="both ends"),
        pytest.param(lambda x: tf.where(x < 0, int64(7), x), 7, id="lower end"),
        # These leave ids below 0, which have rows.
        pytest.param(lambda x: tf.where(x < ROWS, x, int64(7)), None, id="upper end"),
        pytest.param(lambda x: tf.where(tf.equal(x, -1), int64(7), x), None, id="-1"),
    ],
)
def test_row_of_ids_outside_a_table_that_counts_from_its_end(
    change: Change, row: int | None
) -> None:
    traced = trace(lambda features: {"ids": change(features["x"])}, x=ids())
    call = replace(traced.calls, from_end=True)
    resolved = find_ids(Values(traced.results["ids"]), call, ROWS)
    if row is None:
        assert not isinstance(resolved, ResolvedIds)
    else:
        assert isinstance(resolved, ResolvedIds)
        assert resolved.unknown == Unknown(rule="row", row=row)


@pytest.mark.parametrize(
    ("change", "keys", "first_row", "cast"),
    [
        (lambda f: LISTED.lookup(f["x"]), (10, 20, 30), 6, None),
        (lambda f: CITIES.lookup(f["city"]), ("red", "blue"), 4, None),
        (lambda f: DECIMALS.lookup(tf.strings.as_string(f["x"])), (10, -20), 0, None),
        (
            lambda f: DECIMALS_OF_64_BITS.lookup(tf.strings.as_string(f["x"])),
            (-(1 << 63), (1 << 63) - 1),
            0,
            None,
        ),
        (
            lambda f: LISTED.lookup(tf.cast(f["number"], tf.int64)),
            (10, 20, 30),
            6,
            Cast(of="float32", to="int64"),
        ),
    ],
)
def test_keys_of_a_vocabulary_have_the_rows_of_its_table(
    change: Change, keys: tuple[int | str, ...], first_row: int, cast: Cast | None
) -> None:
    resolved = found(change, ROWS)
    assert isinstance(resolved, ResolvedIds)
    assert isinstance(resolved.rule, VocabularyIds)
    assert (resolved.keys, resolved.rule.first_row) == ((keys,), first_row)
    assert (resolved.cast, resolved.unknown) == (cast, None)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f: LISTED.lookup(f["x"] * f["x"]), id="computed keys"),
        pytest.param(lambda f: WITH_A_GAP.lookup(f["x"]), id="a gap"),
        pytest.param(lambda f: FROM_MINUS_1.lookup(f["city"]), id="a position below 0"),
        pytest.param(lambda f: LATIN_1.lookup(f["city"]), id="a key that is not in UTF-8"),
        pytest.param(
            lambda f: OF_65_BITS.lookup(tf.strings.as_string(f["x"])), id="a key beyond int64"
        ),
        pytest.param(
            lambda f: OF_65_BITS_BELOW_0.lookup(tf.strings.as_string(f["x"])),
            id="a key below int64",
        ),
        pytest.param(lambda f: EMPTY.lookup(f["x"]), id="no keys"),
        pytest.param(
            lambda f: NOT_DECIMAL.lookup(tf.strings.as_string(f["x"])), id="a leading zero"
        ),
        pytest.param(
            lambda f: MINUS_0.lookup(tf.strings.as_string(f["x"])), id="a minus sign of 0"
        ),
        pytest.param(
            lambda f: DECIMALS.lookup(tf.strings.as_string(f["x"], fill="+")), id="a plus sign"
        ),
        pytest.param(
            lambda f: tf.raw_ops.LookupTableFindV2(
                table_handle=LISTED.resource_handle, keys=f["x"], default_value=f["y"][0]
            ),
            id="a default of an input",
        ),
    ],
)
def test_lookup_in_another_table_has_no_rule(change: Change) -> None:
    assert not isinstance(found(change, ROWS), ResolvedIds)


@pytest.mark.parametrize(
    ("default", "from_end", "rows", "row"),
    [
        (-1, False, 9, None),
        (-1, True, 9, 8),
        (-1, True, None, None),
        (1, True, 9, 1),
        (0, True, 9, 0),
        (8, False, 9, 8),
        (9, False, 9, None),
        (0, False, None, 0),
    ],
)
def test_default_of_a_vocabulary_is_the_row_of_unknown_keys(
    default: int, from_end: bool, rows: int | None, row: int | None
) -> None:
    table = table_of([10, 20], [0, 1], default)
    traced = trace(lambda features: {"ids": table.lookup(features["x"])}, x=ids())
    call = replace(traced.calls, from_end=from_end)
    resolved = find_ids(Values(traced.results["ids"]), call, rows)
    assert isinstance(resolved, ResolvedIds)
    assert resolved.unknown == (None if row is None else Unknown(rule="row", row=row))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (listed_or(lambda f: f["x"] % 4), (4, 0, "modulo")),
        (listed_or(lambda f: f["x"] % 4 + 2), (4, 2, "modulo")),
        (
            listed_or(lambda f: tf.strings.to_hash_bucket_fast(f["city"], 3) + 1, CITIES, "city"),
            (3, 1, "fingerprint"),
        ),
        (
            lambda f: tf.where(
                tf.not_equal(LISTED.lookup(f["x"]), -1), LISTED.lookup(f["x"]), f["x"] % 4
            ),
            None,
        ),
        # Not every id outside the vocabulary, or another row of each.
        (listed_or(lambda f: f["y"] % 4), None),
        (listed_or(lambda f: f["x"] % 4 - 1), None),
        (listed_or(lambda f: f["x"] % 4 * 2), None),
        (listed_or(lambda f: (f["x"] + 1) % 4), None),
        (listed_or(lambda f: tf.cast(tf.cast(f["x"], tf.int32) % 4, tf.int64)), None),
        (listed_or(lambda f: strongly_hashed(f["city"]), CITIES, "city"), None),
        (
            listed_or(
                lambda f: tf.where(tf.equal(f["city"], ""), int64(0), hashed(f["city"])),
                CITIES,
                "city",
            ),
            None,
        ),
        (listed_or(lambda f: f["x"] % 4, DEFAULT_3), None),
        (lambda f: tf.where(tf.equal(hashed(f["x"]), -1), f["x"] % 4, hashed(f["x"])), None),
        (lambda f: tf.where(tf.equal(f["x"], -1), f["x"] % 4, LISTED.lookup(f["x"])), None),
    ],
)
def test_ids_outside_a_vocabulary_are_spread_over_rows(
    change: Change, rule: tuple[int, int, str] | None
) -> None:
    resolved = found(change, 9)
    if rule is None:
        assert not isinstance(resolved, ResolvedIds)
    else:
        assert isinstance(resolved, ResolvedIds)
        assert isinstance(resolved.rule, VocabularyIds)
        spread = resolved.rule
        assert (spread.oov_buckets, spread.oov_first_row, spread.oov_hash) == rule


def bucketized(numbers: Any, *boundaries: float) -> Any:
    return tf.raw_ops.Bucketize(input=numbers, boundaries=list(boundaries))


@pytest.mark.parametrize(
    ("change", "rows", "rule"),
    [
        # A number falls as another rises: its neighbor is the first below a boundary.
        (
            lambda f: bucketized(-f["number"], 1.0, 2.0),
            ROWS,
            BucketIds(boundaries=(-1.9999998807907104, -0.9999999403953552), falling=True),
        ),
        (
            lambda f: 2 - bucketized(f["number"], 1.0, 2.0),
            ROWS,
            BucketIds(boundaries=(1.0, 2.0), falling=True),
        ),
        # Rows begin at any number; for another rule, they need not be rows of a table.
        (
            lambda f: tf.cast(tf.clip_by_value(f["number"] * 2.0, 100_000.0, 100_002.0), tf.int32),
            None,
            BucketIds(boundaries=(50_000.5, 50_001.0), first_row=100_000),
        ),
        (
            lambda f: bucketized(f["number"], 1.0) - 1,
            None,
            BucketIds(boundaries=(1.0,), first_row=-1),
        ),
        (lambda f: bucketized(f["number"], 1.0) - 2, None, None),
        (lambda f: bucketized(f["number"], 1.0) - 2, ROWS, BucketIds(boundaries=(), first_row=-1)),
        (
            lambda f: bucketized(f["number"], 1.0) - 1,
            ROWS,
            BucketIds(boundaries=(1.0,), first_row=-1),
        ),
        # Numbers beyond the integers become the smallest one: rows rise, and fall again.
        (
            lambda f: bucketized(tf.cast(tf.cast(f["number"] * 1e9, tf.int32), tf.float32), 1e9),
            ROWS,
            None,
        ),
        # A cast to int32 before buckets wraps around.
        (
            lambda f: bucketized(tf.cast(f["x"], tf.int32), 1.0, 20.0),
            ROWS,
            ChainedIds(rules=(computed(WRAP), BucketIds(boundaries=(1.0, 20.0)))),
        ),
    ],
)
def test_buckets_begin_with_the_row_of_the_smallest_number(
    change: Change, rows: int | None, rule: IdRule | None
) -> None:
    resolved = found(change, rows)
    assert (resolved.rule if isinstance(resolved, ResolvedIds) else None) == rule


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(
            lambda f: bucketized(f["number"], 1.0, 2.0, 3.0) - 2,
            ChainedIds(
                rules=(BucketIds(boundaries=(1.0, 2.0, 3.0), first_row=1), computed(("add", -3)))
            ),
            id="rows below 0",
        ),
        pytest.param(
            lambda f: bucketized(f["number"], 1.0, 2.0) - 5,
            ChainedIds(rules=(BucketIds(boundaries=(2.0,), first_row=-1), computed(("add", -3)))),
            id="rows below the table",
        ),
        pytest.param(
            lambda f: bucketized(f["number"], 1.0, 2.0),
            BucketIds(boundaries=(1.0, 2.0)),
            id="no row below 0",
        ),
    ],
)
def test_buckets_of_a_table_that_counts_from_its_end(change: Change, rule: IdRule) -> None:
    traced = trace(lambda features: {"ids": change(features)}, number=numbers())
    resolved = find_ids(Values(traced.results["ids"]), replace(traced.calls, from_end=True), 3)
    assert isinstance(resolved, ResolvedIds)
    assert resolved.rule == rule


@pytest.mark.parametrize(("steps", "described"), [(500, True), (501, False)])
def test_buckets_have_at_most_as_many_steps_as_fit_a_manifest(
    steps: int, described: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "STEPS_MAX", 500)
    resolved = found(
        lambda f: tf.cast(tf.clip_by_value(f["number"] * 2.0, 0.0, float(steps)), tf.int32),
        2 * steps,
    )
    assert isinstance(resolved, ResolvedIds) == described


def test_buckets_of_a_logarithm_begin_near_its_steps() -> None:
    resolved = found(
        lambda f: tf.cast(tf.math.log(tf.maximum(f["number"], 1.0)) * 3.0, tf.int32), ROWS
    )
    assert isinstance(resolved, ResolvedIds)
    assert isinstance(resolved.rule, BucketIds)
    # TensorFlow's logarithm is not monotonic within a few numbers of a step.
    steps = [math.exp(row / 3) for row in range(1, ROWS + 1)]
    assert resolved.rule.boundaries == pytest.approx(steps, rel=1e-5)


def searched(sorted_: list[list[float]], values: Any) -> Any:
    return tf.raw_ops.UpperBound(sorted_inputs=tf.constant(sorted_), values=values)


@pytest.mark.parametrize(
    ("change", "boundaries"),
    [
        (lambda f: tf.raw_ops.Bucketize(input=f["number"], boundaries=[1.0, 2.0]), (1.0, 2.0)),
        (lambda f: tf.raw_ops.Bucketize(input=f["x"], boundaries=[1.0, 2.0]), (1.0, 2.0)),
        (lambda f: tf.searchsorted([1.0, 2.0], f["number"], side="right"), (1.0, 2.0)),
        (lambda f: tf.raw_ops.Bucketize(input=tf.floor(f["number"]), boundaries=[1.5]), (2.0,)),
        (lambda f: tf.raw_ops.Bucketize(input=2.0 * f["number"], boundaries=[1.0]), (0.5,)),
        (lambda f: tf.raw_ops.Bucketize(input=f["number"] / 2.0, boundaries=[1.0]), (2.0,)),
        (lambda f: tf.raw_ops.Bucketize(input=f["number"] - 2.0, boundaries=[1.0]), (3.0,)),
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.cast(tf.cast(f["number"] * 2.0, tf.float64), tf.float32),
                boundaries=[1.5],
            ),
            (0.75,),
        ),
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.raw_ops.ClipByValue(t=f["number"], clip_value_min=0.0, clip_value_max=5.0),
                boundaries=[1.0],
            ),
            (1.0,),
        ),
        # No step within what float32 distinguishes, several sequences, numbers of 64 bits, and
        # operations that are not known to be monotonic.
        (lambda f: tf.raw_ops.Bucketize(input=f["x"], boundaries=[2.0**25]), None),
        (lambda f: tf.raw_ops.Bucketize(input=f["x"], boundaries=[-(2.0**25)]), None),
        (
            lambda f: tf.reshape(
                searched([[1.0, 2.0], [1.0, 2.0]], tf.reshape(f["number"], [2, -1])), [-1]
            ),
            None,
        ),
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.cast(f["number"], tf.float64), boundaries=[1.0]
            ),
            None,
        ),
        (lambda f: tf.raw_ops.Bucketize(input=f["number"] ** 3.0, boundaries=[1.0]), None),
        # A flag is 1 of numbers on both sides of 0.
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.cast(tf.cast(f["x"], tf.bool), tf.int32), boundaries=[0.5]
            ),
            None,
        ),
        # Products that wrap around, and are compared with a number.
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.raw_ops.Mul(x=f["small"], y=1000), boundaries=[1.0]
            ),
            None,
        ),
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.raw_ops.Mul(x=f["small"], y=3), boundaries=[1.0]
            ),
            None,
        ),
        (
            lambda f: tf.raw_ops.Bucketize(input=f["number"] + f["other_number"], boundaries=[1.0]),
            None,
        ),
        (
            lambda f: tf.raw_ops.Bucketize(
                input=tf.raw_ops.ClipByValue(
                    t=tf.fill(tf.shape(f["number"]), 5.0),
                    clip_value_min=f["number"],
                    clip_value_max=tf.fill(tf.shape(f["number"]), 9.0),
                ),
                boundaries=[7.0],
            ),
            None,
        ),
    ],
)
def test_buckets_begin_at_the_steps_of_what_is_known_to_rise_or_fall(
    change: Change, boundaries: tuple[float, ...] | None
) -> None:
    resolved = found(change, ROWS)
    if boundaries is None:
        assert not isinstance(resolved, ResolvedIds)
    else:
        assert isinstance(resolved, ResolvedIds)
        assert resolved.rule == BucketIds(boundaries=boundaries)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            lambda flat: tf.where(tf.equal(flat, 5), tf.zeros_like(flat), hashed(flat)),
            HashIds(buckets=ROWS, mask=5),
        ),
        (
            lambda flat: tf.where(tf.equal(flat, 5), int64(0), hashed(flat)),
            HashIds(buckets=ROWS, mask=5),
        ),
        (
            lambda flat: tf.searchsorted(tf.constant([1, 2], tf.int64), flat, side="right"),
            BucketIds(boundaries=(1.0, 2.0)),
        ),
        # Constants of one value, and others: which values they belong to is not known.
        (lambda flat: tf.where(tf.constant([True]), flat, hashed(flat)), None),
        (
            lambda flat: tf.where(
                tf.equal(flat, int64(5)[None]), tf.zeros_like(flat), hashed(flat)
            ),
            None,
        ),
    ],
)
def test_values_of_a_flat_tensor_are_followed_through_tensors_of_its_shape(
    change: Change, rule: IdRule | None
) -> None:
    traced = trace(lambda features: {"ids": change(tf.reshape(features["pair"], [-1]))}, **INPUTS)
    resolved = find_ids(Values(traced.results["ids"], 1, 2), traced.calls, ROWS)
    assert (resolved.rule if isinstance(resolved, ResolvedIds) else None) == rule


def test_mask_of_each_column_is_that_of_no_rule() -> None:
    def masked(features: Any) -> Any:
        pair = features["pair"]
        return tf.where(tf.equal(pair, [5, 6]), tf.zeros_like(pair), hashed(pair))

    traced = trace(lambda features: {"ids": masked(features)}, **INPUTS)
    assert not isinstance(
        find_ids(Values(traced.results["ids"], 1, 2), traced.calls, ROWS), ResolvedIds
    )


@pytest.mark.parametrize("column", [False, True])
def test_chain_follows_one_column_of_several(column: bool) -> None:
    def chained(features: Any) -> Any:
        rows = hashed(hashed(features["pair"] if column else features["x"]) % 9)
        return rows[:, 1] if column else rows

    traced = trace(lambda features: {"ids": chained(features)}, **INPUTS)
    resolved = find_chain(Values(traced.results["ids"]), traced.calls, ROWS)
    assert isinstance(resolved, ResolvedIds)
    steps = (HashIds(buckets=ROWS), computed(("remainder", 9)), HashIds(buckets=ROWS))
    assert resolved.rule == ChainedIds(rules=steps)
    source = ("pair", 1) if column else ("x", None)
    assert (resolved.source.name, resolved.source.place) == source


def test_chain_of_what_no_rule_describes_is_none() -> None:
    traced = trace(lambda features: {"ids": hashed(features["x"] * features["x"])}, **INPUTS)
    resolved = find_chain(Values(traced.results["ids"]), traced.calls, ROWS)
    assert not isinstance(resolved, ResolvedIds)
