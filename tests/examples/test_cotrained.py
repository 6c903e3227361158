"""Of a co-trained model only the ranking is exported, and of its tables those that the ranking reads."""

import pytest

from export.jobs import bundle_job
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.examples.showing import Asked, ask

RANKING = {"ranking_users", "ranking_movies", "ranking_hours", "genres"}


@pytest.fixture(scope="module")
def cotrained(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return ask("cotrained", tmp_path_factory.mktemp("cotrained"))


def test_service_ranks_as_tensorflow_does(cotrained: Asked) -> None:
    assert cotrained.shown.within


def test_only_the_tables_of_the_ranking_leave(cotrained: Asked) -> None:
    assert set(cotrained.page.tables) == RANKING
    assert set(cotrained.page.towers) == {"ranking"}


def test_one_input_is_looked_up_in_two_tables(cotrained: Asked) -> None:
    job = read_recipe(cotrained.folder / "recipe.toml")
    features = bundle_job.prepare(job, cotrained.folder, ExportSettings()).traced.spec.features
    assert {"history@ranking_movies", "history@retrieval_movies", "movie_id@ranking_movies"} <= set(features)
