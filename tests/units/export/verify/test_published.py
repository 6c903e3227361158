"""`verify --recipe`: a published bundle once more against the model, the checkpoint, the corpus and
exact search.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.storage.catalog import read_manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import UsageError, VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.bundle_files import check_unlisted
from export.verify.checks import check_recall
from export.verify.published import verify_against_recipe, verify_bundle
from runtime.partitions import partition_rows
from runtime.scann import write_index
from tests.bundles.search_costs import COSTS
from tests.hostile.manifest_edits import Json, reseal, rewrite, setting
from tests.units.export.commands import Command
from tests.units.export.damaged_indexes import (
    VECTORS,
    build_of_reversed_vectors,
    reverse_codes,
    reverse_vectors,
    swap_vectors,
)
from tests.units.export.movies_job import MOVIES, Recipe, changed, export, write_project
from tests.units.export.small_job import save_small_recipe, with_tree

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
TOWER = "towers/query/compiled-f32.tflite"
STORE = "corpora/movies/store.arrow"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The small job, with an index of exact search and a tree over the same vectors."""
    recipe = save_small_recipe(tmp_path_factory.mktemp("small"))
    return changed(recipe, "indexes.tree", with_tree(recipe)["indexes"]["movies"])


@pytest.fixture(scope="module")
def project(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("project"), recipe)


@pytest.fixture(scope="module")
def published(project: Path) -> Path:
    export(project, version=1)
    return project.parent / "bundles/small/1"


@pytest.fixture
def bundle(published: Path, tmp_path: Path) -> Path:
    """A copy of what was staged and published, which a test may damage."""
    return Path(shutil.copytree(published, tmp_path / "small/1"))


def test_verify_with_a_recipe_runs_the_model_and_measures_recall(
    command: Command, published: Path, project: Path
) -> None:
    page = command("verify", published, "--recipe", project, "--json").json
    indexes = read_manifest(published).indexes
    measured = {name: index.recall.value for name, index in indexes.items()}
    assert page["model_check"] == {"examples": 24, "recall": measured}
    assert measured["movies"] == 1.0
    assert {check["rows_compared"] for check in page["tables"].values()} == {10, 40}
    assert page["unlisted"] == []


def test_verify_of_a_bundle_with_another_weight_than_the_model_exits_5(
    command: Command, bundle: Path, project: Path, recipe: Recipe
) -> None:
    checkpoint = open_checkpoint(Path(recipe["checkpoint"]["path"]))
    kernel = checkpoint.read_all("model/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    data = bytearray((bundle / TOWER).read_bytes())
    offset = max(data.find(stored.tobytes()) for stored in (kernel[0], kernel[:, 0]))
    assert offset > 0
    data[offset + 3] ^= 0x02
    (bundle / TOWER).write_bytes(data)
    reseal(bundle)
    done = command("verify", bundle, "--recipe", project)
    assert (done.code, "tower 'query', LiteRT f32" in done.message) == (5, True)


def read_another_feature(bundle: Path) -> None:
    """Feeds a tower the activations of another feature of as many values."""
    rewrite(bundle, setting("towers.query.inputs.0.feature", "movie_id"))


def roll(column: str, bundle: Path) -> None:
    """Gives every candidate the next one's value."""
    with ipc.open_file(bundle / STORE) as file:
        table = file.read_all().combine_chunks()
    values = table.column(column).combine_chunks()
    moved = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
    table = table.set_column(table.schema.get_field_index(column), column, moved)
    (bundle / STORE).unlink()
    with ipc.new_file(bundle / STORE, table.schema) as out:
        out.write_table(table)


def swap_candidates(bundle: Path) -> None:
    """Gives two candidates each other's vector, and builds the index of exact search of these."""
    swap_vectors(bundle)
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    directory = bundle / paths.index_directory("movies")
    write_index(vectors, "dot_product", "brute_force", {}, directory)


@pytest.mark.parametrize(
    ("damage", "words", "steps"),
    [
        (read_another_feature, "tower 'query', SavedModel f32", ()),
        (
            partial(roll, "id"),
            "row 1: id is 107 in the bundle, column 'movieId' of movies.csv says '100'",
            (STORE,),
        ),
        (
            partial(roll, "feature:year"),
            "feature 'year' is [1981.0] in the bundle, column 'year' of movies.csv",
            (STORE,),
        ),
        (partial(roll, "attribute:title"), "attribute 'title' is 'Movie", (STORE,)),
        (
            swap_candidates,
            "candidate 121 (row 4 of corpus 'movies') is not what the original model gives; 2 of "
            "40",
            (VECTORS,),
        ),
        (
            reverse_vectors,
            "index 'indexes/movies/scann' does not hold 40 of 40 vectors compared at their "
            "positions: it was built from other vectors, or in another order",
            ("built indexes/movies/scann", "indexes/movies/scann"),
        ),
        (
            partial(build_of_reversed_vectors, tree="tree"),
            "it was built from other vectors, or in another order",
            ("built indexes/tree/scann", "indexes/tree/scann", "indexes/tree/codes"),
        ),
        (
            partial(reverse_codes, tree="tree"),
            "they were made of other vectors, or in another order",
            ("built indexes/tree/scann", "indexes/tree/scann", "indexes/tree/codes"),
        ),
    ],
)
def test_bundle_that_differs_from_model_or_corpus_fails_by_the_steps_that_made_it(
    bundle: Path,
    project: Path,
    damage: Callable[[Path], None],
    words: str,
    steps: tuple[str, ...],
) -> None:
    damage(bundle)
    reseal(bundle)
    with pytest.raises(VerificationFailed, match=re.escape(words)) as failure:
        verify_against_recipe(bundle, read_recipe(project), project.parent)
    assert failure.value.steps == steps


def test_verify_with_another_models_recipe_exits_2(
    command: Command, published: Path, recipe: Recipe, tmp_path: Path
) -> None:
    other_recipe = write_project(tmp_path / "other", changed(recipe, "model", "films"))
    done = command("verify", published, "--recipe", other_recipe)
    assert (done.code, "the recipe is of model 'films'" in done.message) == (2, True)


def test_check_unlisted_reports_or_rejects_files_beside_the_manifests(
    tmp_path: Path,
) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    page = read_manifest(bundle)
    unlisted = ("_SUCCESS", "tables/cities/.DS_Store")
    for file in unlisted:
        (bundle / file).touch()
    assert check_unlisted(bundle, page) == unlisted
    for file in ("towers/query/saved_model/saved_model.pbtxt", "indexes/movies/scann/tokens.npy"):
        (bundle / file).touch()  # in a directory that is opened whole
        with pytest.raises(VerificationFailed, match=rf"{file}.* is not in the manifest, yet"):
            check_unlisted(bundle, page)
        (bundle / file).unlink()


def write_tree(bundle: Path, partitions: int, swapped: bool) -> None:
    """Replaces a bundle's index by a tree, whose last partition may be of vectors in another
    order.
    """
    index = read_manifest(bundle).indexes["movies"]
    vectors = np.fromfile(bundle / index.vectors, "<f4").reshape(-1, index.dim)
    shutil.rmtree(bundle / index.directory)
    parameters = {"num_leaves": 4, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 1}
    directories = paths.index_partitions(index.directory, partitions)
    for directory, rows in zip(directories, partition_rows(len(vectors), partitions), strict=True):
        partition = vectors[rows.first : rows.end]
        if swapped and directory == directories[-1]:
            partition = partition[::-1].copy()
        write_index(partition, index.distance, "tree_ah", parameters, bundle / directory)

    def change(page: Json) -> None:
        page["indexes"]["movies"] |= {
            "kind": "tree_ah",
            "partitions": partitions,
            "parameters": parameters,
            "costs": COSTS.model_dump(),
        }
        remaining = [file for file in page["files"] if index.directory not in file["path"]]
        written = (path for path in (bundle / index.directory).rglob("*") if path.is_file())
        for path in written:
            data = path.read_bytes()
            name = path.relative_to(bundle).as_posix()
            remaining.append({"path": name, "bytes": len(data), "crc32c": crc32c(data)})
        page["files"] = remaining

    rewrite(bundle, change)


@pytest.mark.parametrize(
    ("promised", "fails"),
    [
        ({"value": 1.0, "target": 0.95, "low": 0.0}, True),
        ({"value": 1.0, "target": 0.0, "low": 0.95}, True),
        # The target was a wish, which the index did not reach when it was exported either.
        ({"value": 0.0, "target": 0.95, "low": 0.0}, False),
        ({"value": 1.0, "target": 0.0, "low": 0.0}, False),
    ],
)
def test_check_recall_fails_below_the_target_and_below_what_was_measured(
    tmp_path: Path, promised: dict[str, float], fails: bool
) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    write_tree(bundle, 1, swapped=False)  # searches one leaf of four

    def promise(page: Json) -> None:
        page["indexes"]["movies"]["recall"] |= promised

    rewrite(bundle, promise)
    page = read_manifest(bundle)
    queries = np.random.default_rng(0).standard_normal((200, page.indexes["movies"].dim))
    measured = partial(check_recall, bundle, page, "movies", queries.astype(np.float32))
    if fails:
        with pytest.raises(VerificationFailed, match=r"recall@\d+ is 0\.\d+ against exact search"):
            measured()
    else:
        assert 0.2 < measured() < 0.95


@pytest.mark.parametrize(
    ("partitions", "wrong"), [(1, "indexes/movies/scann'"), (2, "partition-00001-of-00002'")]
)
def test_verify_of_a_tree_of_vectors_in_another_order_fails(
    tmp_path: Path, partitions: int, wrong: str
) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    write_tree(bundle, partitions, swapped=False)
    assert "index movies" in " ".join(verify_bundle(bundle).findings.opened)

    write_tree(bundle, partitions, swapped=True)
    with pytest.raises(VerificationFailed, match=f"{wrong} does not hold .* another order"):
        verify_bundle(bundle)


def test_verify_of_another_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(UsageError, match="is a SavedModel, no bundle"):
        verify_bundle(tmp_path)
    with pytest.raises(VerificationFailed, match=r"nnn.*: File name too long"):
        verify_bundle(tmp_path / ("n" * 300))  # of any user: rights do not hold back root
