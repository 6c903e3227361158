"""A model in JAX that takes the activations of SparseCores: the service computes the bags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, Manifest
from bundle.storage.catalog import read_manifest
from tests.differential.served_rankers import RankerService, assert_ranked
from tests.models import sparsecore_ranker as ranker
from tests.units.export.job_runs import publish

pytest.importorskip("jax")

pytestmark = pytest.mark.slow

CONTEXT: dict[str, Any] = {"user": 77, "liked": [3, 69, 3], "dense": [0.5, -1.0, 2.0]}
CANDIDATES: dict[str, list[Any]] = {
    "movie": [0, 69, 12, 8],
    "genres": [[1, 23, 4], [], [7], [0, 0]],
    "tags": [
        {"ids": [3, 11, 59], "weights": [0.5, 2.0, -1.0]},
        {"ids": [], "weights": []},
        {"ids": [0], "weights": [3.0]},
        {"ids": [5, 6], "weights": [0.0, 1.5]},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sparsecore")
    ranker.write(made)
    publish(ranker.recipe(model="bags"), made)
    return made


@pytest.fixture(scope="module")
def published(folder: Path) -> Manifest:
    return read_manifest(folder / "bundles" / "bags" / "1")


def test_bags_are_features_with_the_combiner_of_their_table(published: Manifest) -> None:
    actual = {
        name: (feature.table, feature.kind, feature.combiner, feature.weighted)
        for name, feature in published.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert actual == {
        "user": ("users", "single", None, False),
        "movie": ("movies", "single", None, False),
        "liked": ("movies", "bag", "mean", False),
        "genres": ("genres", "bag", "sqrtn", False),
        "tags": ("tags", "bag", "sum", True),
    }


def test_tables_are_cut_out_of_their_stacks(published: Manifest) -> None:
    shapes = {name: (table.rows, table.dim) for name, table in published.tables.items()}
    assert shapes == {name: (table.rows, table.dim) for name, table in ranker.TABLES.items()}
    assert published.tables["users"].source.key == "embedding.movies_users.table"
    assert published.tables["users"].source.layout == "sparse_core"


def assert_served(
    service: RankerService, model: str, context: dict[str, Any], candidates: dict[str, list[Any]]
) -> None:
    """Checks the scores that a service responds with, over both transports."""
    examples = [
        dict(zip(candidates, each, strict=True)) for each in zip(*candidates.values(), strict=True)
    ]
    expected = np.array([ranker.score({**context, **example}) for example in examples])
    for client in service.clients:
        assert_ranked(client, {"score": expected}, candidates, context, model)


def test_service_responds_with_the_scores_of_the_model(
    published: Manifest, folder: Path, ranker_service: RankerService
) -> None:
    ranker_service.publish(folder / "bundles" / "bags")
    assert_served(ranker_service, "bags", CONTEXT, CANDIDATES)


def test_every_combiner_is_weighted_as_on_sparsecores(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    page = ranker.recipe(model="weighted_bags")
    for name, kind in (("liked", "ragged"), ("genres", "sparse")):
        weights = {"dtype": "float32", "kind": kind, "weights_for": name}
        page["inputs"][f"{name}_weights"] = weights
    ranker.write(tmp_path)
    publish(page, tmp_path)
    # Weights that are negative or 0 count as they are.
    liked = {"ids": [3, 69, 3], "weights": [2.0, -0.5, 0.0]}
    genres = [
        {"ids": ids, "weights": [1.5, -1.0, 0.25][: len(ids)]} for ids in CANDIDATES["genres"]
    ]
    ranker_service.publish(tmp_path / "bundles" / "weighted_bags")
    context = {**CONTEXT, "liked": liked}
    assert_served(ranker_service, "weighted_bags", context, {**CANDIDATES, "genres": genres})
