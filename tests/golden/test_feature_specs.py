"""A model in JAX that takes the activations of SparseCores: the service computes the bags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.format.manifest import EmbeddedFeature, Manifest
from bundle.storage.catalog import read_manifest
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.golden.served_rankers import assert_ranked, serving
from tests.models import sparsecore_ranker as ranker

pytest.importorskip("jax")

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
    job = ExportJob.model_validate(ranker.recipe())
    prepared = bundle_job.prepare(job, made, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    return made


@pytest.fixture(scope="module")
def published(folder: Path) -> Manifest:
    return read_manifest(folder / "bundles" / "ranker" / "1")


def test_bags_are_features_with_the_combiner_of_their_table(published: Manifest) -> None:
    found = {
        name: (feature.table, feature.kind, feature.combiner, feature.weighted)
        for name, feature in published.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert found == {
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


def test_service_responds_with_the_scores_of_the_model(folder: Path) -> None:
    candidates = [
        dict(zip(CANDIDATES, each, strict=True)) for each in zip(*CANDIDATES.values(), strict=True)
    ]
    expected = np.array([ranker.score({**CONTEXT, **each}) for each in candidates])
    with serving(folder / "bundles") as clients:
        for client in clients:
            assert_ranked(client, {"score": expected}, CANDIDATES, CONTEXT)
