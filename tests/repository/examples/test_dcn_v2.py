"""DCN v2 with crosses of low rank over bags: the service responds as the trained model did.

Those of full rank are held to theirs by tests/differential/test_examples.py.
"""

import pytest

from bundle.format.manifest import EmbeddedFeature
from examples import criteo
from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def dcn(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("dcn_v2_low_rank", tmp_path_factory.mktemp("dcn_v2"))


def test_service_ranks_dcn_as_tensorflow_does(dcn: ServedExample) -> None:
    assert dcn.within
    assert [form.kind for form in dcn.manifest.towers["ranking"].forms] == ["saved_model", "litert"]


def test_categories_with_several_ids_are_bags_that_are_averaged(dcn: ServedExample) -> None:
    features = {
        name: feature
        for name, feature in dcn.manifest.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    kinds = [(features[name].kind, features[name].combiner) for name in criteo.names()]
    assert kinds == [
        ("single", None) if most == 1 else ("bag", "mean") for most in criteo.MULTI_HOT_SIZES
    ]
