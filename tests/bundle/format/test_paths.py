from __future__ import annotations

import pytest

from bundle.errors import UnsafePath
from bundle.format import paths


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "../x", "a/../b", "a/../../b", "./a", "a//b", "a/", "a\\b", "a\0b", ".", "../../x/y"],
)
def test_checked_path_that_is_not_plain_and_inside_is_refused(path: str) -> None:
    with pytest.raises(UnsafePath):
        paths.checked(path)


def test_checked_path_of_each_kind_of_file_passes() -> None:
    for path in (
        paths.table_shard("users", 3, 4),
        paths.saved_model("query"),
        paths.compiled_tower("query", "int8"),
        paths.candidate_store("movies"),
        paths.index_directory("movies"),
        paths.index_vectors("movies"),
        paths.vocabulary("words"),
        paths.MANIFEST,
    ):
        assert paths.checked(path) == path


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ä", "a" * 129, "-x", "a\n"])
def test_is_name_of_what_cannot_be_a_directory_is_false(name: str) -> None:
    assert not paths.is_name(name)


def test_is_name_of_usual_names_is_true() -> None:
    assert all(map(paths.is_name, ["users", "Movie_2", "a.b-c", "9"]))
