"""`verify --recipe`: a published bundle once more against the model, the checkpoint, the corpus and
exact search.
"""

from __future__ import annotations

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
from export.verify.bundle_files import check_unlisted
from export.verify.checks import check_recall
from export.verify.published import verify_bundle
from runtime.partitions import partition_rows
from runtime.scann import write_index
from tests.bundles.search_costs import COSTS
from tests.export.commands import Command
from tests.export.movies_job import MOVIES, Recipe, changed, write_project
from tests.export.traced_models import TracedCheckpoint
from tests.hostile.manifest_edits import Json, reseal, rewrite

GOLDEN = Path(__file__).parents[2] / "golden/bundle/root/movies/1"
TOWER = "towers/query/compiled-f32.tflite"
STORE = "corpora/movies/store.arrow"
VECTORS = "indexes/movies/vectors.bin"


@pytest.fixture
def bundle(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "movies/1"))


def test_verify_with_a_recipe_runs_the_model_and_measures_recall(
    command: Command, bundle: Path, project: Path
) -> None:
    page = command("verify", bundle, "--recipe", project, "--json").json
    assert page["model_check"] == {"examples": 24, "recall": {"movies": 1.0}}
    assert {check["rows_compared"] for check in page["tables"].values()} != {0}
    assert page["unlisted"] == []


def another_weight(bundle: Path, prefix: Path) -> None:
    key = "model/query_tower/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    kernel = open_checkpoint(prefix).read_all(key)
    data = bytearray((bundle / TOWER).read_bytes())
    at = max(data.find(each.tobytes()) for each in (kernel[0], kernel[:, 0]))
    assert at > 0
    data[at + 3] ^= 0x02
    (bundle / TOWER).write_bytes(data)


def another_feature(bundle: Path, _: Path) -> None:
    """Feeds a tower the activations of one feature as those of another."""
    other = {"user_id": "history", "history": "user_id"}

    def change(page: Json) -> None:
        for each in page["towers"]["query"]["inputs"]:
            each["feature"] = other.get(each["feature"], each["feature"])

    rewrite(bundle, change)


def rolled(column: str, bundle: Path, _: Path) -> None:
    """Gives every candidate the next one's value."""
    with ipc.open_file(bundle / STORE) as file:
        table = file.read_all().combine_chunks()
    values = table.column(column).combine_chunks()
    moved = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
    table = table.set_column(table.schema.get_field_index(column), column, moved)
    (bundle / STORE).unlink()
    with ipc.new_file(bundle / STORE, table.schema) as out:
        out.write_table(table)


def swapped(bundle: Path, _: Path) -> None:
    vectors = np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)
    vectors[[3, 8]] = vectors[[8, 3]]
    vectors.tofile(bundle / VECTORS)


def turned_round(bundle: Path, _: Path) -> None:
    np.fromfile(bundle / VECTORS, "<f4").reshape(MOVIES, -1)[::-1].tofile(bundle / VECTORS)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (another_weight, "tower 'query', LiteRT f32"),
        (another_feature, "tower 'query', SavedModel f32"),
        (
            partial(rolled, "id"),
            "row 1: id is 107 in the bundle, column 'movieId' of movies.csv says '100'",
        ),
        (
            partial(rolled, "feature:year"),
            "feature 'year' is [1981.0] in the bundle, column 'year' of movies.csv",
        ),
        pytest.param(
            partial(rolled, "feature:genres"), "feature 'genres' is [", marks=pytest.mark.slow
        ),
        pytest.param(
            partial(rolled, "attribute:title"),
            "attribute 'title' is 'Movie",
            marks=pytest.mark.slow,
        ),
        (
            swapped,
            "candidate 121 (row 4 of corpus 'movies') is not what the original model gives; 2 of "
            "40",
        ),
        (turned_round, "from other vectors, or in another order"),
    ],
)
def test_verify_of_a_bundle_that_differs_from_model_or_corpus_exits_5(
    command: Command,
    bundle: Path,
    project: Path,
    movies: TracedCheckpoint,
    damage: Callable[[Path, Path], None],
    told: str,
) -> None:
    damage(bundle, movies.prefix)
    reseal(bundle)
    done = command("verify", bundle, "--recipe", project)
    assert done.code == 5
    assert told in done.message


def test_verify_with_another_models_recipe_exits_2(
    command: Command, bundle: Path, recipe: Recipe, tmp_path: Path
) -> None:
    other = write_project(tmp_path / "other", changed(recipe, "model", "films"))
    done = command("verify", bundle, "--recipe", other)
    assert (done.code, "the recipe is of model 'films'" in done.message) == (2, True)


def test_check_unlisted_reports_or_rejects_files_beside_the_manifests(
    tmp_path: Path,
) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    page = read_manifest(bundle)
    beside = ("_SUCCESS", "tables/cities/.DS_Store")
    for file in beside:
        (bundle / file).touch()
    assert check_unlisted(bundle, page) == beside
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
    places = paths.index_partitions(index.directory, partitions)
    for place, rows in zip(places, partition_rows(len(vectors), partitions), strict=True):
        own = vectors[rows.first : rows.end]
        if swapped and place == places[-1]:
            own = own[::-1].copy()
        write_index(own, index.distance, "tree_ah", parameters, bundle / place)

    def change(page: Json) -> None:
        page["indexes"]["movies"] |= {
            "kind": "tree_ah",
            "partitions": partitions,
            "parameters": parameters,
            "costs": COSTS.model_dump(),
        }
        kept = [file for file in page["files"] if index.directory not in file["path"]]
        written = (path for path in (bundle / index.directory).rglob("*") if path.is_file())
        for path in written:
            data = path.read_bytes()
            name = path.relative_to(bundle).as_posix()
            kept.append({"path": name, "bytes": len(data), "crc32c": crc32c(data)})
        page["files"] = kept

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
