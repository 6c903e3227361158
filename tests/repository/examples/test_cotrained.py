"""Of a co-trained model only the ranking is exported, and of its tables those that the ranking
reads.
"""

import pytest

from tests.repository.examples.showing import Serve, ServedExample

RANKING = {"ranking_users", "ranking_movies", "ranking_hours", "genres"}


@pytest.fixture(scope="module")
def cotrained(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("cotrained", tmp_path_factory.mktemp("cotrained"))


def test_service_ranks_as_tensorflow_does(cotrained: ServedExample) -> None:
    assert cotrained.within


def test_only_the_tables_of_the_ranking_are_exported(cotrained: ServedExample) -> None:
    assert set(cotrained.manifest.tables) == RANKING
    assert set(cotrained.manifest.towers) == {"ranking"}


def test_input_of_two_tables_is_looked_up_in_that_of_the_ranking(cotrained: ServedExample) -> None:
    read = {
        name: getattr(feature, "table", None)
        for name, feature in cotrained.manifest.features.items()
    }
    assert (read["history"], read["movie_id"]) == ("ranking_movies", "ranking_movies")
