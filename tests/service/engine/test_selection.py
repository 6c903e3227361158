"""Which tower, index or store a request means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from service.engine.selection import choose_corpus, choose_index
from service.errors import InvalidArgument, NotFound
from tests.service.engine.served import Served

Load = Callable[..., Served]


def test_choose_among_several_requires_a_name(load: Load) -> None:
    version = load().version
    twice = replace(version, indexes={**version.indexes, "again": version.indexes["movies"]})
    with pytest.raises(InvalidArgument, match=r"'index' must be named: .* has 'again', 'movies'"):
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
