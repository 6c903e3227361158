"""A vocabulary file becomes keys in the order of its lines, or one sentence that names the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.tables.vocabularies import Vocabulary
from export.errors import UsageError
from export.tables.vocabularies import (
    as_array,
    read_keys,
    write_model_vocabulary,
    write_vocabulary,
)


def test_vocabulary_of_integers_gives_each_line_its_row(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("31\n7\n-5\n")
    assert write_vocabulary(tmp_path / "keys.txt", "int64", tmp_path / "v" / "keys.arrow") == 3
    actual = Vocabulary.open(tmp_path / "v" / "keys.arrow").find("f", np.array([-5, 31, 8, 7]))
    assert actual.tolist() == [2, 0, -1, 1]


def test_vocabulary_of_strings_keeps_characters_that_look_like_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_bytes("a b\r\nc\u2028d\r\n7".encode())
    assert write_vocabulary(tmp_path / "keys.txt", "string", tmp_path / "keys.arrow") == 3
    actual = Vocabulary.open(tmp_path / "keys.arrow").find(
        "f", np.array(["c\u2028d", "7", "a b", "a"], object)
    )
    assert actual.tolist() == [1, 2, 0, -1]


@pytest.mark.parametrize(
    ("content", "dtype", "words"),
    [
        (b"", "int64", "is empty"),
        (b"1\nx\n", "int64", "line 2: 'x'"),
        (b"1\n\n2\n", "int64", "line 2: ''"),
        (b"1\n9223372036854775808\n", "int64", "line 2"),
        (b"1\n2\n1\n", "int64", "id 1 comes twice"),
        (b"a\na\n", "string", "'a' comes twice"),
        (b"\xff\xfe\n", "string", "cannot be read"),
        (None, "string", "cannot be read"),
    ],
)
def test_invalid_vocabulary_is_rejected(
    tmp_path: Path, content: bytes | None, dtype: str, words: str
) -> None:
    if content is not None:
        (tmp_path / "keys.txt").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        write_vocabulary(tmp_path / "keys.txt", dtype, tmp_path / "keys.arrow")  # type: ignore[arg-type]
    assert not (tmp_path / "keys.arrow").exists()


def test_vocabulary_of_the_model_gives_each_key_its_row(tmp_path: Path) -> None:
    for keys, wanted in (([7, -5, 31], [31, 8, 7]), (["b", "7"], ["7", "8", "b"])):
        path = tmp_path / str(keys[0]) / "keys.arrow"
        assert write_model_vocabulary("names", keys, path) == len(keys)
        kind = object if isinstance(keys[0], str) else np.int64
        actual = Vocabulary.open(path).find("f", np.array(wanted, kind))
        assert actual.tolist() == [len(keys) - 1, -1, 0]
    with pytest.raises(UsageError) as rejection:
        write_model_vocabulary("names", [1, 2, 1], tmp_path / "twice.arrow")
    assert str(rejection.value).startswith("vocabulary 'names' of the model: id 1 comes twice")


def test_keys_of_a_model_are_strings_if_one_of_them_is() -> None:
    assert as_array(["a", "b"]).dtype == object
    assert as_array([1, 2]).dtype == np.int64
    assert as_array(["1", "2"]).tolist() == ["1", "2"]


@pytest.mark.parametrize("end", ["", "\n"])
def test_last_line_of_a_vocabulary_need_not_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "keys.txt").write_text(f"31\n7{end}")
    assert read_keys(tmp_path / "keys.txt", "int64").tolist() == [31, 7]
    assert read_keys(tmp_path / "keys.txt", "string").tolist() == ["31", "7"]
