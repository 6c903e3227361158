"""Which computations of ids a rule describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import BucketIds, Cast, HashIds, VocabularyIds
from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.rules import find_ids
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, texts, trace

Change = Callable[[Any], Any]


def found(change: Change, rows: int | None, **inputs: Any) -> ResolvedIds | Values:
    """Finds the rule of what a function makes of its inputs."""
    traced = trace(lambda features: {"ids": change(features)}, **inputs)
    return find_ids(Values(traced.results["ids"]), traced.calls, rows)


def tenths(features: Any) -> Any:
    return limited(features["x"] * 10.0, 50.0)


def limited(numbers: Any, largest: float) -> Any:
    """Casts numbers within limits: beyond the integers, TensorFlow makes the smallest one."""
    return tf.cast(tf.clip_by_value(numbers, -1.0, largest), tf.int32)


def test_numbers_that_are_cast_to_rows_become_a_bucket_for_each_row() -> None:
    resolved = found(tenths, 50, x=numbers())
    assert isinstance(resolved, ResolvedIds)
    assert isinstance(resolved.rule, BucketIds)
    rule = resolved.rule
    assert (rule.first_row, rule.falling, len(rule.boundaries)) == (-1, False, 51)
    # Row n begins at n / 10, but casts round toward zero: row 0 begins above -0.1.
    np.testing.assert_allclose(rule.boundaries, [-0.1, *np.arange(1, 51) / 10], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        pytest.param(
            lambda features: limited(features["x"], float(1 << 17)),
            1 << 18,
            id="more rows than a rule has buckets",
        ),
        pytest.param(
            lambda features: tf.cast(features["x"] * 10.0, tf.int32),
            50,
            id="numbers beyond the integers",
        ),
        pytest.param(
            lambda features: tf.cast(tf.clip_by_value(features["x"], -5.0, 5.0), tf.int32),
            None,
            id="numbers below the first row",
        ),
        pytest.param(lambda features: tf.cast(features["x"] ** 2, tf.int32), 50, id="no step"),
    ],
)
def test_numbers_that_are_no_step_function_of_few_steps_become_no_buckets(
    change: Change, rows: int | None
) -> None:
    resolved = found(change, rows, x=numbers())
    assert not (isinstance(resolved, ResolvedIds) and isinstance(resolved.rule, BucketIds))


@pytest.mark.parametrize(
    ("scale", "is_rule"),
    [
        (lambda x: x * 10.0, True),
        (lambda x: x * 1.0, True),
        (lambda x: x * 0.0, False),
        (lambda x: x / 0.5, True),
        (lambda x: 10.0 / x, False),
    ],
)
def test_numbers_that_are_scaled_by_anything_but_zero_become_buckets(
    scale: Change, is_rule: bool
) -> None:
    # A constant, which no optimizer of the trace folds.
    scaled = found(lambda features: limited(scale(features["x"]), 50.0), 50, x=numbers())
    assert isinstance(scaled, ResolvedIds) == is_rule


@pytest.mark.parametrize(
    ("kind", "mask", "by", "is_rule"),
    [
        (ids(), 7, "x", True),
        (ids(), 7, "y", False),
        (ids(), None, "y", False),
        (texts(), "none", "x", True),
        (texts(), "none", "y", False),
        (texts(), None, "y", False),
    ],
)
def test_ids_have_a_rule_where_the_masked_input_is_their_own(
    kind: Any, mask: int | str | None, by: str, is_rule: bool
) -> None:
    hashing = tf.keras.layers.Hashing(300)

    def masked(features: Any) -> Any:
        known = features["x"] if mask is None else tf.constant(mask, kind.dtype)
        left_out = tf.equal(features[by], known)
        return tf.where(left_out, tf.constant(0, tf.int64), hashing(features["x"]))

    resolved = found(masked, 300, x=kind, y=kind)
    assert isinstance(resolved, ResolvedIds) == is_rule
    if isinstance(resolved, ResolvedIds):
        assert isinstance(resolved.rule, HashIds)
        assert resolved.rule.mask == mask


@pytest.mark.parametrize(
    ("default", "rows", "is_rule"), [(-1, None, True), (-5, None, False), (-5, 9, True)]
)
def test_default_of_a_vocabulary_below_its_rows_is_a_rule_where_rows_are_bounded(
    default: int, rows: int | None, is_rule: bool
) -> None:
    keys = tf.constant([10, 20], tf.int64)
    initial = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0, 1], tf.int64))
    table = tf.lookup.StaticHashTable(initial, default)
    resolved = found(lambda features: table.lookup(features["x"]), rows, x=ids())
    assert isinstance(resolved, ResolvedIds) == is_rule


@pytest.mark.parametrize(("first_row", "added"), [(2, 2), (0, 0)])
def test_keys_outside_a_vocabulary_are_spread_by_their_remainders(
    first_row: int, added: int
) -> None:
    keys = tf.constant([10, 20, 30], tf.int64)
    initial = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([6, 7, 8], tf.int64))
    table = tf.lookup.StaticHashTable(initial, -1)

    def listed_or_spread(features: Any) -> Any:
        rows = table.lookup(features["x"])
        beyond = features["x"] % 4
        return tf.where(tf.equal(rows, -1), beyond + added if added else beyond, rows)

    resolved = found(listed_or_spread, 9, x=ids())
    assert isinstance(resolved, ResolvedIds)
    rule = resolved.rule
    assert isinstance(rule, VocabularyIds)
    assert (rule.first_row, resolved.keys) == (6, ((10, 20, 30),))
    assert (rule.oov_buckets, rule.oov_first_row, rule.oov_hash) == (4, first_row, "modulo")


@pytest.mark.parametrize(
    ("change", "rows", "cast"),
    [
        (lambda features: features["x"], None, None),
        (lambda features: tf.cast(features["x"], tf.int32), None, Cast(of="int64", to="int32")),
        # 2^32 + 5 is row 5 of the model's table.
        (lambda features: tf.cast(features["x"], tf.int32), 50, Cast(of="int64", to="int32")),
    ],
)
def test_integers_that_wrap_around_are_cast_whatever_takes_them(
    change: Change, rows: int | None, cast: Cast | None
) -> None:
    resolved = found(change, rows, x=ids())
    assert isinstance(resolved, ResolvedIds)
    assert (resolved.source.name, resolved.rule, resolved.cast) == ("x", None, cast)


@pytest.mark.parametrize(
    ("rows", "is_rule"), [(None, False), (50, True), (1 << 24, True), ((1 << 24) + 1, False)]
)
def test_integers_that_were_floats_are_rows_that_a_float_can_tell(
    rows: int | None, is_rule: bool
) -> None:
    resolved = found(
        lambda features: tf.cast(tf.cast(features["x"], tf.float32), tf.int64), rows, x=ids()
    )
    assert isinstance(resolved, ResolvedIds) == is_rule


@pytest.mark.parametrize("rows", [None, 50])
def test_strings_are_resolved_unchanged(rows: int | None) -> None:
    resolved = found(lambda features: features["x"], rows, x=texts())
    assert isinstance(resolved, ResolvedIds)
    assert (resolved.source.name, resolved.rule, resolved.cast) == ("x", None, None)
