"""What the names in requests mean, and how unknown ones are rejected."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

import pytest

from service.engine.validation import choose_corpus, choose_index, name_hint
from service.errors import InvalidArgument, NotFound
from tests.units.service.engine.served import Served

Load = Callable[..., Served]


def test_name_hint_without_a_close_name_lists_a_bounded_number() -> None:
    hint = name_hint("zzz", [f"feature{number:03d}" for number in range(500)], "takes")
    assert hint.count("feature") == 20


def test_name_hint_among_thousands_still_finds_a_misspelt_name() -> None:
    accepted = [f"feature_{number:04d}" for number in range(3000)] + ["watched_movies"]
    assert name_hint("watched_movie", accepted, "takes") == "did you mean 'watched_movies'?"


@pytest.mark.parametrize("name", ["watched_movie" * 100_000, "feature_x"])
def test_name_hint_compares_a_bounded_number_of_short_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def get_close_matches(word: str, possibilities: list[str], n: int) -> list[str]:
        compared.append((len(word), len(possibilities)))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", get_close_matches)
    name_hint(name, [f"feature_{number:04d}" for number in range(3000)], "takes")
    assert all(length <= 64 and count <= 64 for length, count in compared)


def test_choose_among_several_requires_a_name(load: Load) -> None:
    version = load().version
    twice = replace(version, indexes={**version.indexes, "again": version.indexes["movies"]})
    with pytest.raises(InvalidArgument, match=r"index is empty; one of 'again', 'movies' of model"):
        choose_index(twice, "")
    assert choose_index(twice, "again")[0] == "again"
    with pytest.raises(NotFound, match=r"has no index$"):
        choose_index(replace(version, indexes={}), "")


def test_choose_corpus_of_a_feature_that_several_store_is_rejected(load: Load) -> None:
    version = load().version
    twice = replace(version, corpora={**version.corpora, "again": version.corpora["movies"]})
    with pytest.raises(InvalidArgument, match="corpora 'movies', 'movies' all store"):
        choose_corpus(twice, {"year"})
    assert choose_corpus(twice, {"user"}) is None
