"""DLRM in Flax: the service returns JAX's own scores."""

import pytest

from tests.repository.examples.showing import Serve, ServedExample

pytest.importorskip("flax")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flax_dlrm(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("flax_dlrm", tmp_path_factory.mktemp("flax_dlrm"))


def test_service_ranks_as_jax_does(flax_dlrm: ServedExample) -> None:
    assert flax_dlrm.within


def test_features_are_rows_of_tables_and_have_the_roles_of_the_recipe(
    flax_dlrm: ServedExample,
) -> None:
    features = flax_dlrm.manifest.features
    candidates = {name for name, feature in features.items() if feature.role == "candidate"}
    assert len(features) == 27
    assert candidates == {f"c{number}" for number in range(17, 27)}
