"""`verify --recipe`: a published bundle once more against the model, the checkpoint and exact search."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle.format.checksums import crc32c
from bundle.format.manifest import Manifest
from bundle.storage.staging import read_manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.recipe.schema import IndexPart
from export.verify.model_checks import check_recall
from tests.export.commands import Command
from tests.export.cutting import Cut
from tests.export.exporting import Recipe, changed, write_project
from tests.hostile.manifest_edits import Json, rewrite, setting

GOLDEN = Path(__file__).parents[2] / "golden/bundle/root/movies/1"
TOWER = "towers/query/compiled-f32.tflite"
VECTORS = "indexes/movies/vectors.bin"


@pytest.fixture
def bundle(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "movies/1"))


def altered(bundle: Path, path: str, change: Callable[[bytearray], None]) -> None:
    """Changes a file and has the page tell the digest that fits, as who wrote the file would."""
    data = bytearray((bundle / path).read_bytes())
    change(data)
    (bundle / path).write_bytes(data)

    def reseal(page: Json) -> None:
        for file in page["files"]:
            if file["path"] == path:
                file["crc32c"] = crc32c(bytes(data))

    rewrite(bundle, reseal)


def test_verify_with_a_recipe_runs_the_model_and_measures_recall(command: Command, bundle: Path, project: Path) -> None:
    page = command("verify", bundle, "--recipe", project, "--json").page
    assert page["model_check"] == {"examples": 24, "recall": {"movies": 1.0}}
    assert {check["rows_compared"] for check in page["tables"].values()} != {0}
    assert page["unlisted"] == []


def test_verify_tower_with_another_weight_exits_5(command: Command, bundle: Path, project: Path, movies: Cut) -> None:
    """Its digest fits and it opens: only the model tells that it answers otherwise."""
    key = "model/query_tower/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    kernel = open_checkpoint(movies.prefix).read_all(key)

    def change(data: bytearray) -> None:
        at = max(data.find(each.tobytes()) for each in (kernel[0], kernel[:, 0]))
        assert at > 0
        data[at + 3] ^= 0x02

    altered(bundle, TOWER, change)
    assert command("verify", bundle).code == 0
    done = command("verify", bundle, "--recipe", project)
    assert done.code == 5
    assert "tower 'query', LiteRT f32" in done.told


def test_verify_vectors_of_other_candidates_exits_5(command: Command, bundle: Path, project: Path) -> None:
    def change(data: bytearray) -> None:
        half = len(data) // 2
        data[:half], data[half:] = data[half:], data[:half]

    altered(bundle, VECTORS, change)
    assert command("verify", bundle, "--recipe", project).code == 5


def test_verify_with_another_models_recipe_exits_2(
    command: Command, bundle: Path, recipe: Recipe, tmp_path: Path
) -> None:
    other = write_project(tmp_path / "other", changed(recipe, "model", "films"))
    done = command("verify", bundle, "--recipe", other)
    assert done.code == 2
    assert "the recipe is of model 'films'" in done.told


def golden(bundle: Path, **told: float) -> Manifest:
    for name, value in told.items():
        rewrite(bundle, setting(f"indexes.movies.recall.{name}", value))
    return read_manifest(bundle)


def test_check_recall_is_that_of_exact_search_over_the_vectors(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    page = golden(bundle)
    index = page.indexes["movies"]
    vectors = np.fromfile(bundle / index.vectors, "<f4").reshape(-1, index.dim)
    part = IndexPart(corpus="movies", query_tower="query", candidate_tower="candidate")
    assert check_recall(bundle, page, "movies", part, vectors[::3]) == 1.0
    # The page's index finds what is near; vectors of others are not.
    np.random.default_rng(1).permutation(vectors).tofile(bundle / index.vectors)
    with pytest.raises(VerificationFailed, match="against exact search over its vectors"):
        check_recall(bundle, page, "movies", part, vectors[::3])
