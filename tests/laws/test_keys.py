"""Key indexes and vocabularies find what a dictionary finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FeatureError, FormatError
from bundle.tables import vocabularies as vocabularies_module
from bundle.tables.key_index import KeyIndex, KeyIndexWriter, index_bytes
from bundle.tables.vocabularies import (
    DICTIONARY_MAX,
    IntegerKeys,
    MappedStringKeys,
    StringKeys,
    Vocabulary,
    write_vocabulary,
)
from tests.units.bundle.features.readers import objects

ENDS = [-(1 << 63), (1 << 63) - 1]
INTEGERS = st.integers(-9, 60) | st.integers(*ENDS) | st.sampled_from(ENDS)
RUNS = st.builds(lambda first, size: [*range(first, first + size)], INTEGERS, st.integers(1, 99))
INTEGER_KEYS = (st.lists(INTEGERS, min_size=1, max_size=99, unique=True) | RUNS).filter(
    lambda keys: max(keys) <= ENDS[1]
)
TEXTS = st.lists(st.text("abé\0", max_size=3), min_size=1, max_size=30, unique=True)


def write_keys(path: Path, *parts: Any) -> int:
    with KeyIndexWriter(path) as writer:
        for part in parts:
            writer.append(np.asarray(part, np.int64))
        return writer.finish()


@given(keys=INTEGER_KEYS, further=st.lists(INTEGERS, max_size=20), parts=st.integers(1, 4))
def test_integers_are_found_in_indexes_and_vocabularies(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], further: list[int], parts: int
) -> None:
    directory = tmp_path_factory.mktemp("keys")
    size = write_keys(directory / "k", *np.array_split(np.array(keys), parts))
    assert (directory / "k").stat().st_size == index_bytes(len(keys))
    write_vocabulary(directory / "v", np.array(keys))
    wanted = np.array([*further, *keys, *further])
    rows = {key: row for row, key in enumerate(keys)}
    expected = [rows.get(key, -1) for key in wanted.tolist()]
    vocabulary = Vocabulary.open(directory / "v")
    assert (vocabulary.size, vocabulary.dtype) == (len(keys), "int64")
    assert KeyIndex(directory / "k", size).find(wanted).tolist() == expected
    assert vocabulary.find("f", wanted).tolist() == expected
    assert vocabulary.find("f", objects(*map(str, keys))).tolist() == [*rows.values()]
    for position in range(min(9, wanted.size)):
        single = vocabulary.find("f", wanted[position : position + 1])
        assert single.tolist() == expected[position : position + 1]


def lengths(texts: Any) -> NDArray[np.uint64]:
    """A hash that many texts share."""
    return np.array([len(text) for text in texts.tolist()], np.uint64)


@given(keys=TEXTS, further=st.lists(st.text("abé\0", max_size=3), max_size=9))
def test_texts_are_found_in_vocabularies_even_if_their_fingerprints_are_equal(
    keys: list[str], further: list[str]
) -> None:
    wanted = [*further, *keys, "e\u0301", "\ud800"]
    expected = [keys.index(text) if text in keys else -1 for text in wanted]
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            mapped = MappedStringKeys(pa.array(keys, pa.large_string()))
            for index in (StringKeys(keys), mapped):
                assert index.positions("f", objects(*wanted)).tolist() == expected
                with pytest.raises(FeatureError, match="integer"):
                    index.positions("f", np.array([10]))
            patch.setattr(vocabularies_module, "fingerprints", lengths)
            patch.setattr(vocabularies_module, "column_fingerprints", lengths)


def test_a_large_vocabulary_of_texts_is_read_from_its_file(tmp_path: Path) -> None:
    keys = [f"user-{number}" for number in range(DICTIONARY_MAX + 1)]
    write_vocabulary(tmp_path / "v", objects(*keys))
    vocabulary = Vocabulary.open(tmp_path / "v")
    assert (vocabulary.size, vocabulary.dtype) == (DICTIONARY_MAX + 1, "string")
    positions = vocabulary.find("f", objects("user-x", *keys)).tolist()
    assert positions == [-1, *range(DICTIONARY_MAX + 1)]
    with pytest.raises(FormatError, match="'user-7' comes twice"):
        write_vocabulary(tmp_path / "w", objects(*keys, "user-7"))


def test_a_key_that_comes_twice_is_named_and_no_file_is_left(tmp_path: Path) -> None:
    for keys, words in (([3, -7, 5, 9, -7], "key -7 comes twice"), ([], "no key")):
        with pytest.raises(FormatError, match=words):
            write_keys(tmp_path / "k", keys[:3], keys[3:])
    for numbers in ([1, 1], [1, 2, 3, 1], [5, 4, 5], [0, 1, 2, 2]):
        repeated = next(number for number in numbers if numbers.count(number) > 1)
        with pytest.raises(FormatError, match=f"id {repeated} comes twice"):
            IntegerKeys(np.array(numbers))
    for opened in (StringKeys, lambda keys: MappedStringKeys(pa.array(keys, pa.large_string()))):
        with pytest.raises(FormatError, match="'b' comes twice"):
            opened(["b", "a", "b"])
    assert not [*tmp_path.iterdir()]


@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_key_index_never_reads_outside_its_file(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "k"
    random = np.random.default_rng(seed)
    keys = random.integers(-(1 << 62), 1 << 62, 100)
    write_keys(path, keys)
    damaged = np.fromfile(path, "<i8")
    damaged_places = 200 + random.integers(0, damaged.size - 200, 5)
    damaged[damaged_places] = random.integers(ENDS[0], ENDS[1], 5)
    damaged.tofile(path)
    assert KeyIndex(path, 100).find(keys).shape == (100,)
    with pytest.raises(DigestMismatch, match="101 keys"):
        KeyIndex(path, 101)
