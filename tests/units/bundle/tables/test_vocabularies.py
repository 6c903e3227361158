from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import FeatureError, FormatError
from bundle.storage import arrow
from bundle.tables.vocabularies import (
    DICTIONARY_MAX,
    IntegerKeys,
    MappedStringKeys,
    StringKeys,
    Vocabulary,
    write_vocabulary,
)
from tests.units.bundle.features.readers import objects


@pytest.mark.parametrize(
    "keys",
    [
        [5],
        [3, 4, 5, 6],
        [6, 5, 4],
        [-(1 << 63), (1 << 63) - 1],
        [1, 2, 9, 4],
        [10, 20, 30],
        [0, 2, 1, 3],
        [],
    ],
)
def test_integer_keys_find_what_a_dictionary_finds(keys: list[int]) -> None:
    index = IntegerKeys(np.array(keys, np.int64))
    wanted = [*keys, *range(-3, 12), (1 << 63) - 1, -(1 << 63)]
    expected = [keys.index(key) if key in keys else -1 for key in wanted]
    assert index.positions("f", np.array(wanted, np.int64)).tolist() == expected


@pytest.mark.parametrize("high", [5000, 1 << 40, (1 << 63) - 1])
def test_integer_keys_find_the_same_rows_at_once_and_one_by_one(high: int) -> None:
    random = np.random.default_rng(3)
    keys = np.unique(
        np.concatenate(
            [random.integers(-high, high, 2000), [-(1 << 63), (1 << 63) - 1, *range(500)]]
        )
    )
    for order in (keys, random.permutation(keys)):
        index = IntegerKeys(order)
        wanted = random.permutation(np.concatenate([keys, random.integers(-high, high, 500)]))
        expected = np.concatenate(
            [
                index.positions("f", wanted[position : position + 1])
                for position in range(wanted.size)
            ]
        )
        assert index.positions("f", wanted).tolist() == expected.tolist()
        assert index.positions("f", order).tolist() == list(range(order.size))


@pytest.mark.parametrize("keys", [[1, 1], [1, 2, 3, 2], [5, 4, 5], [0, 1, 2, 2]])
def test_integer_keys_with_a_repeated_key_name_it(keys: list[int]) -> None:
    twice = next(key for key in keys if keys.count(key) > 1)
    with pytest.raises(FormatError, match=f"id {twice} comes twice"):
        IntegerKeys(np.array(keys, np.int64))


def mapped(keys: list[str]) -> MappedStringKeys:
    return MappedStringKeys(pa.array(keys, pa.large_string()))


any_string_keys = pytest.mark.parametrize("string_keys", [StringKeys, mapped])
MakeKeys = Callable[[list[str]], StringKeys | MappedStringKeys]


@any_string_keys
def test_string_keys_find_exact_strings_only(string_keys: MakeKeys) -> None:
    keys = string_keys(["a", "", "é", "10"])
    wanted = objects("é", "", "A", "10", "e\u0301", "\ud800")
    assert keys.positions("f", wanted).tolist() == [2, 1, -1, 3, -1, -1]
    assert keys.positions("f", objects()).tolist() == []
    with pytest.raises(FeatureError, match="integer"):
        keys.positions("f", np.array([10]))


@any_string_keys
def test_string_keys_with_a_repeated_key_name_it(string_keys: MakeKeys) -> None:
    with pytest.raises(FormatError, match="'b' comes twice"):
        string_keys(["b", "a", "b"])


def test_strings_of_one_fingerprint_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farmhash, "fingerprint64", len)
    keys = mapped(["aa", "b", "ba", "ab"])
    wanted = objects("ab", "aa", "bb", "b", "a", "ba")
    assert keys.positions("f", wanted).tolist() == [3, 0, -1, 1, -1, 2]
    with pytest.raises(FormatError, match="'ab' comes twice"):
        mapped(["ab", "ba", "ab"])


def test_large_vocabulary_of_strings_is_read_from_its_file(tmp_path: Path) -> None:
    keys = [f"user-{number}" for number in range(DICTIONARY_MAX + 1)]
    write_vocabulary(tmp_path / "v", objects(*keys))
    vocabulary = Vocabulary.open(tmp_path / "v")
    assert (vocabulary.size, vocabulary.dtype) == (DICTIONARY_MAX + 1, "string")
    positions = vocabulary.find("f", objects("user-x", *keys)).tolist()
    assert positions == [-1, *range(DICTIONARY_MAX + 1)]
    with pytest.raises(FormatError, match="'user-7' comes twice"):
        write_vocabulary(tmp_path / "w", objects(*keys, "user-7"))


def test_vocabulary_reads_back_after_it_was_written(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "s", objects("x", "y"))
    write_vocabulary(tmp_path / "i", np.array([7, 3], np.int64))
    texts = Vocabulary.open(tmp_path / "s")
    numbers = Vocabulary.open(tmp_path / "i")
    assert (texts.size, texts.dtype, numbers.size, numbers.dtype) == (2, "string", 2, "int64")
    assert texts.find("f", objects("y", "z", "x")).tolist() == [1, -1, 0]
    assert numbers.find("f", np.array([3, 4, 7])).tolist() == [1, -1, 0]
    assert numbers.find("f", objects("3")).tolist() == [1]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"key": pa.array([1, None])}, "nulls"),
        ({"key": pa.array([1.5])}, "double"),
        ({"other": pa.array([1])}, "columns 'key'"),
        ({"key": pa.array(["a", "a"])}, "twice"),
    ],
)
def test_file_that_is_no_vocabulary_is_rejected(
    tmp_path: Path, table: dict[str, Any], problem: str
) -> None:
    arrow.write(tmp_path / "v", pa.table(table))
    with pytest.raises(FormatError, match=problem):
        Vocabulary.open(tmp_path / "v")
