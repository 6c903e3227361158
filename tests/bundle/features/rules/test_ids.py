from __future__ import annotations

from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import DigestMismatch, FeatureError, FormatError
from bundle.features.rules.ids import Arithmetic, Buckets, Computed, Hash, Identity, KeptHash, Listed, resolve_all
from bundle.storage import arrow
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary, write_vocabulary


def objects(*values: Any) -> np.ndarray[Any, Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def test_identity_of_ids_outside_the_table_is_unknown() -> None:
    values = np.array([0, 9, 10, -1, 1 << 62, -(1 << 63)])
    assert Identity("f", 10).resolve(values).tolist() == [0, 9, -1, -1, -1, -1]


def test_identity_takes_strings_of_digits_as_integers() -> None:
    assert Identity("f", 10).resolve(objects("7", "-3", "9223372036854775807")).tolist() == [7, -1, -1]


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (Arithmetic("f", 10, shift=-1), [-1, 0, 9, -1, -1]),
        (Arithmetic("f", 10, buckets=7), [0, 1, 3, 4, 6]),
        (Arithmetic("f", 10, buckets=7, truncated=True), [0, 1, 3, 4, -1]),
        (Arithmetic("f", 10, buckets=7, truncated=True, first_row=1), [1, 2, 4, 5, 0]),
        (Arithmetic("f", 10, divisor=5, first_row=1), [1, 1, 3, 3, 0]),
        (Arithmetic("f", 10, shift=4, divisor=5, buckets=3), [0, 1, 2, 0, 0]),
    ],
)
def test_arithmetic_is_that_of_integers_and_rows_beyond_the_table_are_unknown(
    rule: Arithmetic, rows: list[int]
) -> None:
    assert rule.resolve(np.array([0, 1, 10, 11, -1], np.int32)).tolist() == rows
    assert rule.resolve(objects("0", "1", "10", "11", "-1")).tolist() == rows


@pytest.mark.parametrize(
    ("operations", "rows"),
    [
        ([("multiply", 2), ("add", 1)], [1, 3, -1, -1, -1, 1]),
        ([("at_most", 7), ("at_least", 2)], [2, 2, 7, 7, 2, 2]),
        ([("absolute", None), ("remainder", 7)], [0, 1, 3, 4, 1, 6]),
        ([("add", 2), ("int32", None), ("divide", 1 << 30)], [0, 0, 0, 0, 0, 0]),
        ([("multiply", -1), ("truncated_remainder", 4), ("add", 3)], [3, 2, 1, 0, 4, 3]),
    ],
)
def test_computed_ids_are_what_operations_make_of_them_in_their_order(
    operations: list[tuple[str, int | None]], rows: list[int]
) -> None:
    assert Computed("f", 10, operations).resolve(np.array([0, 1, 10, 11, -1, -(1 << 63)])).tolist() == rows


def test_buckets_of_which_the_largest_number_is_first_are_the_same_alone_and_with_others() -> None:
    numbers = np.array([-1.0, 0.5, 0.75, 2.0, 9.0], np.float32)
    told = [(first, falling) for first in (0, 4) for falling in (False, True)]
    rules = [Buckets("f", 9, (0.5, 2.0), first_row=first, falling=falling) for first, falling in told]
    assert [rule.resolve(numbers).tolist() for rule in rules[:2]] == [[0, 1, 1, 2, 2], [2, 1, 1, 0, 0]]
    together = resolve_all(rules, [numbers] * 4)
    assert [rows.tolist() for rows in together] == [rule.resolve(numbers).tolist() for rule in rules]


def test_arithmetic_refuses_what_is_no_integer() -> None:
    with pytest.raises(FeatureError, match="'a' is no integer id"):
        Arithmetic("f", 10, buckets=3).resolve(objects("a"))


def test_hash_with_a_mask_keeps_its_row_apart_as_integer_and_as_text() -> None:
    rule = KeptHash("f", 10, 9, 1, mask=5)
    plain = Hash("f", 10, 9, 1)
    values = np.array([5, 6, -5])
    assert rule.resolve(values).tolist() == [0, *plain.resolve(values[1:]).tolist()]
    assert rule.resolve(objects("5", "6", "-5")).tolist() == rule.resolve(values).tolist()
    assert rule.resolve(np.empty(0)).size == 0


def test_hash_with_a_key_refuses_text_that_is_none() -> None:
    with pytest.raises(FeatureError, match="no Unicode text"):
        KeptHash("f", 10, 10, key=(1, 2)).resolve(objects("\ud800"))


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.uint64])
def test_identity_widens_other_integers(dtype: type) -> None:
    assert Identity("f", 10).resolve(np.array([3, 11], dtype)).tolist() == [3, -1]


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
        Identity("f", 10).resolve(values)
    assert len(str(problem.value)) < 300


def test_hash_of_an_integer_is_that_of_its_decimal_string() -> None:
    values = np.array([0, -5, 123456789, 1 << 62])
    expected = [farmhash.fingerprint64(str(value)) % 1000 for value in values.tolist()]
    assert Hash("f", 1000, 1000).resolve(values).tolist() == expected
    assert Hash("f", 1000, 1000).resolve(values.astype(str).astype(object)).tolist() == expected


def test_hash_into_more_buckets_than_rows_leaves_the_rest_unknown() -> None:
    wide = Hash("f", 1 << 40, 100).resolve(np.arange(200))
    narrow = Hash("f", 10, 100).resolve(np.arange(200))
    assert (narrow == np.where(wide < 10, wide, -1)).all()
    assert (narrow == -1).any()


def test_hash_of_text_that_utf8_cannot_carry_raises() -> None:
    with pytest.raises(FeatureError, match="UTF-8"):
        Hash("f", 10, 10).resolve(objects("\ud800"))


def test_buckets_count_the_boundaries_that_are_not_above() -> None:
    boundaries = (0.0, 0.1, 10.0, 10.0)
    values = np.array([-1, 0, 0.05, 0.1, 9, 10, 11], np.float32)
    expected = [sum(np.float32(boundary) <= value for boundary in boundaries) for value in values]
    assert Buckets("f", 9, boundaries).resolve(values).tolist() == expected
    assert Buckets("f", 9, boundaries).resolve(np.array([-3, 11])).tolist() == [0, 4]
    assert Buckets("f", 3, boundaries).resolve(np.array([11])).tolist() == [-1]
    assert Buckets("f", 9, boundaries, 5).resolve(np.array([-3, 11])).tolist() == [5, -1]
    assert Buckets("f", 9, boundaries, -1).resolve(np.array([-3, 11])).tolist() == [-1, 3]


@pytest.mark.parametrize(
    "values", [np.array([np.nan]), np.array([np.inf]), np.array([1e300]), objects("1"), np.array([True])]
)
def test_buckets_of_what_is_no_finite_number_raises(values: np.ndarray[Any, Any]) -> None:
    with pytest.raises(FeatureError):
        Buckets("f", 3, (0.0,)).resolve(values)


@pytest.mark.parametrize(
    "keys", [[5], [3, 4, 5, 6], [6, 5, 4], [-(1 << 63), (1 << 63) - 1], [1, 2, 9, 4], [10, 20, 30], [0, 2, 1, 3], []]
)
def test_integer_keys_find_what_a_dictionary_finds(keys: list[int]) -> None:
    found = IntegerKeys(np.array(keys, np.int64))
    wanted = [*keys, *range(-3, 12), (1 << 63) - 1, -(1 << 63)]
    expected = [keys.index(key) if key in keys else -1 for key in wanted]
    assert found.positions("f", np.array(wanted, np.int64)).tolist() == expected


@pytest.mark.parametrize("keys", [[1, 1], [1, 2, 3, 2], [5, 4, 5], [0, 1, 2, 2]])
def test_integer_keys_with_a_key_twice_are_refused_by_name(keys: list[int]) -> None:
    twice = next(key for key in keys if keys.count(key) > 1)
    with pytest.raises(FormatError, match=f"id {twice} comes twice"):
        IntegerKeys(np.array(keys, np.int64))


def test_string_keys_find_exact_strings_only() -> None:
    keys = StringKeys(["a", "", "é", "10"])
    assert keys.positions("f", objects("é", "", "A", "10", "e\u0301")).tolist() == [2, 1, -1, 3, -1]
    with pytest.raises(FeatureError, match="integer"):
        keys.positions("f", np.array([10]))
    with pytest.raises(FormatError, match="'b' comes twice"):
        StringKeys(["b", "a", "b"])


def test_vocabulary_written_is_the_vocabulary_opened(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "s", objects("x", "y"))
    write_vocabulary(tmp_path / "i", np.array([7, 3], np.int64))
    texts, numbers = Vocabulary.open(tmp_path / "s"), Vocabulary.open(tmp_path / "i")
    assert (texts.size, texts.dtype, numbers.size, numbers.dtype) == (2, "string", 2, "int64")
    assert Listed("f", 10, texts, 5).resolve(objects("y", "z", "x")).tolist() == [6, -1, 5]
    assert Listed("f", 10, numbers, 0).resolve(np.array([3, 4, 7])).tolist() == [1, -1, 0]
    assert Listed("f", 10, numbers, 0).resolve(objects("3")).tolist() == [1]


def test_vocabulary_longer_than_its_table_leaves_the_rest_unknown() -> None:
    listed = Listed("f", 3, Vocabulary(IntegerKeys(np.arange(10))), 1)
    assert listed.resolve(np.arange(4)).tolist() == [1, 2, -1, -1]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"key": pa.array([1, None])}, "nulls"),
        ({"key": pa.array([1.5])}, "double"),
        ({"other": pa.array([1])}, "columns 'key'"),
        ({"key": pa.array(["a", "a"])}, "twice"),
    ],
)
def test_vocabulary_that_is_none_is_refused(tmp_path: Path, table: dict[str, Any], problem: str) -> None:
    arrow.write(tmp_path / "v", pa.table(table))
    with pytest.raises(FormatError, match=problem):
        Vocabulary.open(tmp_path / "v")


def test_vocabulary_that_is_missing_is_data_loss(tmp_path: Path) -> None:
    with pytest.raises(DigestMismatch, match="missing"):
        Vocabulary.open(tmp_path / "v")


def test_write_vocabulary_with_a_key_twice_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="'a' comes twice"):
        write_vocabulary(tmp_path / "v", objects("a", "a"))
    assert not (tmp_path / "v").exists()
