"""A vocabulary file becomes keys in the order of its lines, or one sentence that names the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.tables.vocabularies import Vocabulary
from export.errors import UsageError
from export.tables.vocabularies import write_vocabulary


def test_vocabulary_of_integers_gives_each_line_its_row(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("31\n7\n-5\n")
    assert write_vocabulary(tmp_path / "keys.txt", "int64", tmp_path / "v" / "keys.arrow") == 3
    found = Vocabulary.open(tmp_path / "v" / "keys.arrow").find("f", np.array([-5, 31, 8, 7]))
    assert found.tolist() == [2, 0, -1, 1]


def test_vocabulary_of_strings_keeps_characters_that_look_like_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_bytes("a b\r\nc\u2028d\r\n7".encode())
    assert write_vocabulary(tmp_path / "keys.txt", "string", tmp_path / "keys.arrow") == 3
    found = Vocabulary.open(tmp_path / "keys.arrow").find(
        "f", np.array(["c\u2028d", "7", "a b", "a"], object)
    )
    assert found.tolist() == [1, 2, 0, -1]


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
def test_invalid_vocabulary_is_refused(
    tmp_path: Path, content: bytes | None, dtype: str, words: str
) -> None:
    if content is not None:
        (tmp_path / "keys.txt").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        write_vocabulary(tmp_path / "keys.txt", dtype, tmp_path / "keys.arrow")  # type: ignore[arg-type]
    assert not (tmp_path / "keys.arrow").exists()
