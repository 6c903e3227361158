"""Activations of jax-tpu-embedding's features: the service combines rows as training did."""

import pytest

from bundle.format.manifest import EmbeddedFeature
from tests.examples.showing import Asked, ask

pytest.importorskip("flax")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return ask("jax_tpu_embedding", tmp_path_factory.mktemp("ranker"))


def test_service_scores_as_jax_does(ranker: Asked) -> None:
    assert ranker.shown.within


def test_features_have_the_tables_and_combiners_of_their_specifications(ranker: Asked) -> None:
    found = {
        name: (feature.table, feature.combiner)
        for name, feature in ranker.manifest.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert found == {
        "user_id": ("users", None),
        "history": ("movies", "mean"),
        "hour": ("hours", None),
        "movie_id": ("movies", None),
        "genres": ("genres", "sqrtn"),
    }


def test_tables_that_share_a_stack_come_from_one_array(ranker: Asked) -> None:
    sources = {name: table.source for name, table in ranker.manifest.tables.items()}
    assert sources["users"].key == sources["movies"].key == "embedding.movies_users.table"
    assert sources["hours"].key == "embedding.hours.table"
    assert {source.layout for source in sources.values()} == {"sparse_core"}
