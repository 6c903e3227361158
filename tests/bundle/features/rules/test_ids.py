"""Rows of ids by each rule, and what is no id; TensorFlow judges those that it has in tests/golden."""

from __future__ import annotations

from typing import Any

import farmhash
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.rules.ids import OneInput, cast, rule_of, within
from bundle.format.manifest import BucketIds, Cast, ComputedIds, HashIds, IdentityIds, IdOperation, VocabularyIds
from bundle.tables.vocabularies import IntegerKeys, Vocabulary
from tests.bundle.features.readers import objects

VOCABULARIES = {"v": Vocabulary(IntegerKeys(np.arange(10)))}
SMALLEST = -(1 << 63)


def computed(*operations: tuple[Any, int | None]) -> ComputedIds:
    return ComputedIds(operations=tuple(IdOperation(do=do, by=by) for do, by in operations))


def rows(entry: OneInput, values: NDArray[Any], count: int = 10) -> NDArray[np.int64]:
    return within(rule_of(entry, VOCABULARIES).resolve("f", values), count)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([("add", -1)], [-1, 0, 9, -1, -1, -1]),
        ([("remainder", 7)], [0, 1, 3, 4, 6, 6]),
        ([("truncated_remainder", 7)], [0, 1, 3, 4, -1, -1]),
        ([("truncated_remainder", 7), ("add", 1)], [1, 2, 4, 5, 0, 0]),
        ([("divide", 5), ("add", 1)], [1, 1, 3, 3, 0, -1]),
        ([("add", 4), ("divide", 5), ("remainder", 3)], [0, 1, 2, 0, 0, 2]),
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
    values = np.array([0, 1, 10, 11, -1, SMALLEST])
    assert rows(computed(*operations), values).tolist() == expected
    assert rows(computed(*operations), values.astype(str).astype(object)).tolist() == expected


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (IdentityIds(), np.array([0, 9, 10, -1, 1 << 62, SMALLEST]), [0, 9, -1, -1, -1, -1]),
        (IdentityIds(), objects("7", "-3", "9223372036854775807"), [7, -1, -1]),
        *((IdentityIds(), np.array([3, 11], dtype), [3, -1]) for dtype in (np.int32, np.int8, np.uint8, np.uint64)),
        (BucketIds(boundaries=(0.0, 10.0, 10.0)), np.array([-1, 0, 9, 10, 11], np.float32), [0, 1, 1, 3, 3]),
        (BucketIds(boundaries=(0.0, 0.1, 10.0)), np.array([-3, 11]), [0, 3]),
        (BucketIds(boundaries=tuple(range(12))), np.array([11]), [-1]),
        (BucketIds(boundaries=(0.0, 9.0), first_row=-1), np.array([-3, 11]), [-1, 1]),
        (BucketIds(boundaries=(0.0, 9.0), first_row=4, falling=True), np.array([-1.0, 0, 9.5]), [6, 5, 4]),
        (VocabularyIds(vocabulary="v", first_row=8), np.arange(4), [8, 9, -1, -1]),
        (HashIds(buckets=9, first_row=1, mask=5), np.empty(0), []),
    ],
)
def test_rows_are_those_of_the_rule_and_negative_beyond_the_table(
    rule: OneInput, values: NDArray[Any], expected: list[int]
) -> None:
    assert rows(rule, values).tolist() == expected


def test_hash_is_that_of_the_decimal_string_and_keeps_the_row_of_its_mask_apart() -> None:
    values = np.array([0, -5, 123456789, 1 << 62])
    expected = [farmhash.fingerprint64(str(value)) % 1000 for value in values.tolist()]
    for sent in (values, values.astype(str).astype(object)):
        assert rows(HashIds(buckets=1000), sent, 1000).tolist() == expected
        masked = rows(HashIds(buckets=1000, first_row=1, mask=-5), sent, 2000)
        assert masked.tolist() == [each + 1 if value != -5 else 0 for each, value in zip(expected, values, strict=True)]
    assert (rows(HashIds(buckets=1000), values, 10) == [each if each < 10 else -1 for each in expected]).all()


NO_INTEGERS: list[NDArray[Any]] = [
    *(np.array([value]) for value in (1.5, np.nan, True, b"1")),
    *(np.array([1.0], np.float32), np.array([1 << 63], np.uint64), np.array(["2020-01-01"], "M8[D]")),
    *(objects(value) for value in (None, 3.5, True, [1], "1.0", " 1", "1_0", "+1", "\u0663", "", "1" * 5000)),
    *(objects("1", None), objects("9223372036854775808"), objects("-9223372036854775809")),
]
NO_NUMBERS: list[NDArray[Any]] = [
    *(np.array([value]) for value in (np.nan, np.inf, 1e300, True)),
    objects("1"),
]


@pytest.mark.parametrize(
    ("rule", "values", "told"),
    [
        *((IdentityIds(), values, "'f'") for values in NO_INTEGERS),
        *((BucketIds(boundaries=(0.0,)), values, "'f'") for values in NO_NUMBERS),
        *(
            (IdentityIds(), values, told)  # the shortest text of the first that is none
            for values, told in (
                (np.array([1e20], np.float32), r"1e\+20 is no id"),
                (np.array([0.1], np.float32), r"'f': 0\.1 is no id"),
                (np.array([5, np.inf], np.float32), "inf is no id"),
                (np.array([1.0, 2.0]), r"'f': 1\.0 is no id"),
            )
        ),
        (BucketIds(boundaries=(0.0,)), np.array([1, 1e300]), r"1e\+300 is not finite in float32"),
        (computed(("remainder", 3)), objects("a"), "'a' is no integer id"),
        (HashIds(buckets=10, key=(1, 2)), objects("\ud800"), "no Unicode text"),
        (HashIds(buckets=10), objects("\ud800"), "UTF-8"),
    ],
)
def test_what_is_no_id_is_refused_by_the_feature_s_name(rule: OneInput, values: NDArray[Any], told: str) -> None:
    with pytest.raises(FeatureError, match=told) as problem:
        rows(rule, values)
    assert len(str(problem.value)) < 300


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
    numbers = np.array([0.0, 0.5, 1.5, 2.5, 2.9, -0.5, -1.0, 7.0, 3e9, -1e30, 2.0**31], np.float32)
    assert within(cast(Cast(of="float32", to="int32", rounding=rounding), "f", numbers), 9).tolist() == expected


@pytest.mark.parametrize(
    ("of", "to", "values", "expected"),
    [
        ("float32", "int32", np.array([1e30, -1e30, 2.0**31, 2147483520.0]), [-(1 << 31)] * 3 + [2147483520]),
        ("float32", "int64", np.array([1e30, -1e30, 2.0**63, 2.0**62]), [SMALLEST] * 3 + [1 << 62]),
        ("float32", "int64", np.array([3, (1 << 24) + 1]), [3, 1 << 24]),
        ("int64", "int32", np.array([5, (1 << 32) + 5, 1 << 31, -1]), [5, 5, -(1 << 31), -1]),
    ],
)
def test_cast_wraps_integers_and_takes_numbers_beyond_them_as_the_smallest(
    of: Any, to: Any, values: NDArray[Any], expected: list[int]
) -> None:
    assert cast(Cast(of=of, to=to), "f", values).tolist() == expected


@pytest.mark.parametrize("values", [objects("a"), np.array([np.nan], np.float32)])
def test_cast_refuses_what_is_no_number(values: Any) -> None:
    with pytest.raises(FeatureError, match="f"):
        cast(Cast(of="float32", to="int32"), "f", values)
