"""Two towers in Flax: the service finds what exact search over JAX's own vectors finds."""

import pytest

from tests.repository.examples.showing import Serve, ServedExample

pytest.importorskip("flax")


@pytest.fixture(scope="module")
def two_tower(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("flax_two_tower", tmp_path_factory.mktemp("two_tower"))


def test_service_retrieves_and_embeds_as_jax_does(two_tower: ServedExample) -> None:
    assert two_tower.within


def test_towers_share_a_table_and_keep_the_features_that_they_need(
    two_tower: ServedExample,
) -> None:
    manifest = two_tower.manifest
    takes = {
        name: {source for tower_input in tower.inputs for source in tower_input.sources}
        for name, tower in manifest.towers.items()
    }
    assert takes == {"query": {"user_id", "history", "hour"}, "candidate": {"movie_id", "year"}}
    assert set(manifest.tables) == {"users", "movies"}
    assert manifest.indexes["movies"].recall.value == 1.0
