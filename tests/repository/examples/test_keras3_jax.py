"""Two towers of Keras 3 that JAX trained: the service finds what exact search over vectors of Keras
finds.
"""

import pytest

from tests.repository.examples.showing import Serve, ServedExample

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_tower(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("keras3_jax", tmp_path_factory.mktemp("two_tower"), apart=True)


def test_service_retrieves_and_embeds_as_keras_does_on_jax(two_tower: ServedExample) -> None:
    assert two_tower.within


def test_tables_are_those_of_the_orbax_checkpoint(two_tower: ServedExample) -> None:
    keys = {name: table.source.key for name, table in two_tower.manifest.tables.items()}
    assert keys == {
        "users": "trainable_variables.two_tower.users.embeddings",
        "movies": "trainable_variables.two_tower.movies.embeddings",
    }
