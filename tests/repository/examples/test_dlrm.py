"""DLRM, trained in small, exported and served: the service responds as the trained model did."""

import numpy as np
import pytest

from examples import criteo, demo_models, training
from tests.repository.examples.showing import Serve, ServedExample


@pytest.fixture(scope="module")
def dlrm(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> ServedExample:
    return serve("dlrm", tmp_path_factory.mktemp("dlrm"))


def test_service_ranks_dlrm_as_tensorflow_does(dlrm: ServedExample) -> None:
    assert dlrm.within


def test_demo_serves_dlrm_and_finds_no_difference(dlrm: ServedExample) -> None:
    assert demo_models.serve_and_compare("dlrm", dlrm.folder).within


def test_bundle_of_dlrm_has_26_tables_and_a_compiled_tower(dlrm: ServedExample) -> None:
    assert {name: table.rows for name, table in dlrm.manifest.tables.items()} == {
        f"table_c{number}": rows for number, rows in enumerate(criteo.scaled(300, 30), 1)
    }
    assert [form.kind for form in dlrm.manifest.towers["ranking"].forms] == [
        "saved_model",
        "litert",
    ]
    roles = {name: feature.role for name, feature in dlrm.manifest.features.items()}
    assert [name for name, role in roles.items() if role == "candidate"] == [
        f"c{number}" for number in range(17, 27)
    ]


def test_clicks_are_the_same_for_a_seed_and_depend_on_ids() -> None:
    draws = [
        criteo.Clicks([50] * 26, criteo.MULTI_HOT_SIZES, seed=5).impressions(500) for _ in range(2)
    ]
    assert repr(draws[0]) == repr(draws[1])
    assert 0.2 < draws[0][1]["click"].mean() < 0.8
    assert len(draws[0][0]["c21"]) == 500


def test_area_under_curve_counts_ties_half() -> None:
    assert (
        training.area_under_curve(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 2.0, 3.0])) == 0.875
    )
