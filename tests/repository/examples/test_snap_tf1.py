"""An ad ranker of TF1 with packed features: what is served equals what the session predicted."""

from __future__ import annotations

import pytest

from bundle.format.manifest import EmbeddedFeature
from examples.snap_tf1 import train
from examples.snap_tf1.model import SEEN, SHARING
from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def snap(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("snap_tf1", tmp_path_factory.mktemp("snap_tf1"))


def test_service_ranks_snap_as_the_session_does(snap: ServedExample) -> None:
    assert snap.within
    assert [form.kind for form in snap.manifest.towers["ranking"].forms] == [
        "saved_model",
        "litert",
    ]


def test_features_are_packed_and_share_tables_as_their_columns_do(snap: ServedExample) -> None:
    sizes = train.SIZES["tiny"]
    features = {
        name: feature
        for name, feature in snap.manifest.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert set(features) == set(sizes.features)
    assert {features[f"i{number}"].table for number in range(SHARING)} == {"interests_0"}
    assert {features[name].table for name in (*SEEN, "ad")} == {"ads"}
    assert {features[name].kind for name in SEEN} == {"bag"}
    assert {name for name, feature in features.items() if feature.role == "candidate"} == set(
        sizes.ad_names
    )
    (packed,) = snap.manifest.towers["ranking"].inputs
    assert set(packed.features) == set(sizes.features)


def test_small_ranker_has_thousands_of_features() -> None:
    assert len(train.SIZES["small"].features) > 2_000
