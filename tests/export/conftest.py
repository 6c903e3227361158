from __future__ import annotations

import pytest

from tests.export.cutting import Cut, ads_recipe, cut, movies_recipe


@pytest.fixture(scope="session")
def movies(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Two towers and a ranker over one call of a TFRS layer."""
    return cut(movies_recipe(), tmp_path_factory.mktemp("movies"))


@pytest.fixture(scope="session")
def ads(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """The mid-level API, with weights, a sequence and sparse bags."""
    return cut(ads_recipe(), tmp_path_factory.mktemp("ads"))
