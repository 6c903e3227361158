"""Two towers out of one call of one layer: the service finds what exact search over the original's
vectors finds.
"""

import pytest

from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def two_tower(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("one_call_two_tower", tmp_path_factory.mktemp("two_tower"))


def test_service_retrieves_and_embeds_as_tensorflow_does(two_tower: ServedExample) -> None:
    assert two_tower.within


def test_each_tower_keeps_only_the_features_that_it_needs(two_tower: ServedExample) -> None:
    towers = two_tower.manifest.towers
    takes = {
        name: {source for tower_input in tower.inputs for source in tower_input.sources}
        for name, tower in towers.items()
    }
    assert takes == {"query": {"user_id", "history", "hour"}, "candidate": {"movie_id", "genres"}}
    assert two_tower.manifest.indexes["movies"].recall.value == 1.0
