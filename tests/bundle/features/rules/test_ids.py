from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import farmhash
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.rules.ids import OneInput, cast, resolve_all, rule_of, within
from bundle.format.manifest import (
    BucketIds,
    Cast,
    ComputedIds,
    HashIds,
    IdentityIds,
    IdOperation,
    VocabularyIds,
)
from bundle.tables.vocabularies import IntegerKeys, Vocabulary


def objects(*values: Any) -> np.ndarray[Any, Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def computed(*operations: tuple[Any, int | None]) -> ComputedIds:
    return ComputedIds(operations=tuple(IdOperation(do=do, by=by) for do, by in operations))


def rows(
    entry: OneInput, values: NDArray[Any], count: int = 10, vocabularies: Mapping[str, Vocabulary] | None = None
) -> NDArray[np.int64]:
    return within(rule_of(entry, vocabularies or {}).resolve("f", values), count)


def test_identity_of_ids_outside_the_table_is_unknown() -> None:
    values = np.array([0, 9, 10, -1, 1 << 62, -(1 << 63)])
    assert rows(IdentityIds(), values).tolist() == [0, 9, -1, -1, -1, -1]


def test_identity_takes_strings_of_digits_as_integers() -> None:
    assert rows(IdentityIds(), objects("7", "-3", "9223372036854775807")).tolist() == [7, -1, -1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (computed(("add", -1)), [-1, 0, 9, -1, -1]),
        (computed(("remainder", 7)), [0, 1, 3, 4, 6]),
        (computed(("truncated_remainder", 7)), [0, 1, 3, 4, -1]),
        (computed(("truncated_remainder", 7), ("add", 1)), [1, 2, 4, 5, 0]),
        (computed(("divide", 5), ("add", 1)), [1, 1, 3, 3, 0]),
        (computed(("add", 4), ("divide", 5), ("remainder", 3)), [0, 1, 2, 0, 0]),
    ],
)
def test_arithmetic_is_that_of_integers_and_rows_beyond_the_table_are_unknown(
    rule: ComputedIds, expected: list[int]
) -> None:
    assert rows(rule, np.array([0, 1, 10, 11, -1], np.int32)).tolist() == expected
    assert rows(rule, objects("0", "1", "10", "11", "-1")).tolist() == expected


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([("multiply", 2), ("add", 1)], [1, 3, -1, -1, -1, 1]),
        ([("at_most", 7), ("at_least", 2)], [2, 2, 7, 7, 2, 2]),
        ([("absolute", None), ("remainder", 7)], [0, 1, 3, 4, 1, 6]),
        ([("add", 2), ("int32", None), ("divide", 1 << 30)], [0, 0, 0, 0, 0, 0]),
        ([("multiply", -1), ("truncated_remainder", 4), ("add", 3)], [3, 2, 1, 0, 4, 3]),
    ],
)
def test_computed_ids_are_what_operations_make_of_them_in_their_order(
    operations: list[tuple[Any, int | None]], expected: list[int]
) -> None:
    assert rows(computed(*operations), np.array([0, 1, 10, 11, -1, -(1 << 63)])).tolist() == expected


def test_buckets_may_fall_as_numbers_rise() -> None:
    numbers = np.array([-1.0, 0.5, 0.75, 2.0, 9.0], np.float32)
    assert rows(BucketIds(boundaries=(0.5, 2.0)), numbers).tolist() == [0, 1, 1, 2, 2]
    assert rows(BucketIds(boundaries=(0.5, 2.0), first_row=4, falling=True), numbers).tolist() == [6, 5, 5, 4, 4]


def test_rules_resolve_together_what_each_resolves_alone() -> None:
    rules = [
        rule_of(each, {})
        for each in (IdentityIds(), HashIds(buckets=7), HashIds(buckets=9, first_row=2), HashIds(buckets=9, key=(1, 2)))
    ] * 2
    sent = [np.arange(place, place + 5) for place in range(6)] + [objects("1", "22")] * 2
    names = [f"f{place}" for place in range(8)]
    alone = [rule.resolve(name, values).tolist() for rule, name, values in zip(rules, names, sent, strict=True)]
    assert [found.tolist() for found in resolve_all(rules, names, sent)] == alone


def test_arithmetic_refuses_what_is_no_integer() -> None:
    with pytest.raises(FeatureError, match="'a' is no integer id"):
        rows(computed(("remainder", 3)), objects("a"))


def test_hash_with_a_mask_keeps_its_row_apart_as_integer_and_as_text() -> None:
    rule, values = HashIds(buckets=9, first_row=1, mask=5), np.array([5, 6, -5])
    plain = rows(HashIds(buckets=9, first_row=1), values)
    assert rows(rule, values).tolist() == rows(rule, objects("5", "6", "-5")).tolist() == [0, *plain[1:].tolist()]
    assert rows(rule, np.empty(0)).size == 0


def test_hash_with_a_key_refuses_text_that_is_none() -> None:
    with pytest.raises(FeatureError, match="no Unicode text"):
        rows(HashIds(buckets=10, key=(1, 2)), objects("\ud800"))


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.uint64])
def test_identity_widens_other_integers(dtype: type) -> None:
    assert rows(IdentityIds(), np.array([3, 11], dtype)).tolist() == [3, -1]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0], np.float32),
        np.array([np.nan]),
        np.array([True]),
        objects(None),
        objects("1", None),
        objects(3.5),
        objects(True),
        objects([1]),
        objects("1.0"),
        objects(" 1"),
        objects("1_0"),
        objects("+1"),
        objects("٣"),
        objects(""),
        objects("9223372036854775808"),
        objects("-9223372036854775809"),
        objects("1" * 5000),
        np.array([1 << 63], np.uint64),
        np.array([b"1"]),
        np.array(["2020-01-01"], "M8[D]"),
    ],
)
def test_identity_of_what_is_no_integer_raises_and_names_the_feature(values: np.ndarray[Any, Any]) -> None:
    with pytest.raises(FeatureError, match="'f'") as problem:
        rows(IdentityIds(), values)
    assert len(str(problem.value)) < 300


def test_hash_of_an_integer_is_that_of_its_decimal_string() -> None:
    values = np.array([0, -5, 123456789, 1 << 62])
    expected = [farmhash.fingerprint64(str(value)) % 1000 for value in values.tolist()]
    assert rows(HashIds(buckets=1000), values, 1000).tolist() == expected
    assert rows(HashIds(buckets=1000), values.astype(str).astype(object), 1000).tolist() == expected


def test_hash_into_more_buckets_than_rows_leaves_the_rest_unknown() -> None:
    wide = rows(HashIds(buckets=100), np.arange(200), 100)
    narrow = rows(HashIds(buckets=100), np.arange(200))
    assert (narrow == np.where(wide < 10, wide, -1)).all()
    assert (narrow == -1).any()


def test_hash_of_text_that_utf8_cannot_carry_raises() -> None:
    with pytest.raises(FeatureError, match="UTF-8"):
        rows(HashIds(buckets=10), objects("\ud800"))


def test_buckets_count_the_boundaries_that_are_not_above() -> None:
    boundaries = (0.0, 0.1, 10.0, 10.0)
    values = np.array([-1, 0, 0.05, 0.1, 9, 10, 11], np.float32)
    expected = [sum(np.float32(boundary) <= value for boundary in boundaries) for value in values]
    assert rows(BucketIds(boundaries=boundaries), values, 9).tolist() == expected
    assert rows(BucketIds(boundaries=boundaries), np.array([-3, 11]), 9).tolist() == [0, 4]
    assert rows(BucketIds(boundaries=boundaries), np.array([11]), 3).tolist() == [-1]
    assert rows(BucketIds(boundaries=boundaries, first_row=5), np.array([-3, 11]), 9).tolist() == [5, -1]
    assert rows(BucketIds(boundaries=boundaries, first_row=-1), np.array([-3, 11]), 9).tolist() == [-1, 3]


@pytest.mark.parametrize(
    "values", [np.array([np.nan]), np.array([np.inf]), np.array([1e300]), objects("1"), np.array([True])]
)
def test_buckets_of_what_is_no_finite_number_raises(values: np.ndarray[Any, Any]) -> None:
    with pytest.raises(FeatureError):
        rows(BucketIds(boundaries=(0.0,)), values)


def test_vocabulary_longer_than_its_table_leaves_the_rest_unknown() -> None:
    vocabularies = {"v": Vocabulary(IntegerKeys(np.arange(10)))}
    assert rows(VocabularyIds(vocabulary="v", first_row=1), np.arange(4), 3, vocabularies).tolist() == [1, 2, -1, -1]


NUMBERS = np.array([0.0, 0.5, 1.5, 2.5, 2.9, -0.5, -1.0, 7.0, 3e9, -1e30, 2.0**31], np.float32)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("toward_zero", [0, 0, 1, 2, 2, 0, -1, 7, -1, -1, -1]),
        ("down", [0, 0, 1, 2, 2, -1, -1, 7, -1, -1, -1]),
        ("up", [0, 1, 2, 3, 3, 0, -1, 7, -1, -1, -1]),
        ("half_even", [0, 0, 2, 2, 3, 0, -1, 7, -1, -1, -1]),
    ],
)
def test_cast_rounds_numbers_to_rows(rounding: Any, expected: list[int]) -> None:
    entry = Cast(of="float32", to="int32", rounding=rounding)
    assert within(cast(entry, "f", NUMBERS), 9).tolist() == expected


@pytest.mark.parametrize(("to", "smallest"), [("int32", -(1 << 31)), ("int64", -(1 << 63))])
def test_cast_of_numbers_beyond_integers_is_the_smallest_one(to: Any, smallest: int) -> None:
    entry, largest = Cast(of="float32", to=to), np.nextafter(np.float32(-smallest), np.float32(0))
    beyond = np.array([1e30, -1e30, float(-smallest), largest], np.float32)
    assert cast(entry, "f", beyond).tolist() == [smallest] * 3 + [int(largest)]


def test_cast_takes_integers_as_the_numbers_that_they_are_sent_as() -> None:
    entry = Cast(of="float32", to="int64")
    assert cast(entry, "f", np.array([3, (1 << 24) + 1])).tolist() == [3, 1 << 24]


def test_cast_of_integers_wraps_around() -> None:
    found = cast(Cast(of="int64", to="int32"), "f", np.array([5, (1 << 32) + 5, 1 << 31, -1]))
    assert found.tolist() == [5, 5, -(1 << 31), -1]


@pytest.mark.parametrize("values", [np.array(["a"], object), np.array([np.nan], np.float32)])
def test_cast_refuses_what_is_no_number(values: Any) -> None:
    with pytest.raises(FeatureError, match="f"):
        cast(Cast(of="float32", to="int32"), "f", values)
