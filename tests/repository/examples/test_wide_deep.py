"""Wide & Deep over rows and over hashed ids, from prebatched records to responses that equal the
trained models'.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.format.manifest import DenseFeature, EmbeddedFeature
from examples.wide_deep import data, train
from tests.repository.examples.showing import Serve, ServedExample

pytestmark = pytest.mark.filterwarnings("ignore:Even though .* does not apply to tf.data")


@pytest.fixture(
    scope="module", params=["wide_deep", pytest.param("wide_deep_hashed", marks=pytest.mark.slow)]
)
def wide_deep(
    request: pytest.FixtureRequest, serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> ServedExample:
    return serve(request.param, tmp_path_factory.mktemp(request.param))


def test_service_ranks_wide_deep_as_tensorflow_does(wide_deep: ServedExample) -> None:
    assert wide_deep.within
    assert [form.kind for form in wide_deep.manifest.towers["ranking"].forms] == [
        "saved_model",
        "litert",
    ]


def test_every_category_is_embedded_by_the_models_own_rule(wide_deep: ServedExample) -> None:
    embedded = [
        feature
        for feature in wide_deep.manifest.features.values()
        if isinstance(feature, EmbeddedFeature)
    ]
    deep = {
        feature.table: feature
        for feature in embedded
        if wide_deep.manifest.tables[feature.table].dim > 1
    }
    hashed = any(feature.ids.kind == "graph" for feature in embedded)
    assert len(deep) == 40
    assert sorted(feature.kind for feature in deep.values()) == ["bag"] * 3 + ["single"] * 37
    assert {feature.ids.kind for feature in embedded} == {"graph" if hashed else "identity"}
    numbers = [
        feature
        for feature in wide_deep.manifest.features.values()
        if isinstance(feature, DenseFeature)
    ]
    if hashed:
        assert len(embedded) == 80
    else:  # the wide tables are small and plainly gathered from, so they stay in the tower
        assert len(embedded) == 40
    assert len(numbers) == (10 if hashed else 50)


def test_record_of_a_batch_reads_back(tmp_path: Path) -> None:
    sizes = train.SIZES["tiny"]
    files = data.write_batches(data.Impressions(sizes, seed=2), tmp_path, records=2, batch=64)
    drawn = data.Impressions(sizes, seed=2)
    for features, labels in data.read_batches(files, sizes, 64):
        expected = drawn.batch(64)
        np.testing.assert_array_equal(labels["click"], expected.pop(data.LABEL))
        for name, values in expected.items():
            np.testing.assert_array_equal(features[name], values)


def test_tables_of_the_article_hold_9_gigabytes() -> None:
    sizes = train.SIZES["article"]
    assert round(sum(sizes.rows) * (sizes.dim + 1) * 4 / 1e9, 1) == 9.1
    assert sorted(sizes.ids.values()) == [1] * 37 + [10] * 3
