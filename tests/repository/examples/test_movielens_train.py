"""The example's model, trained for real on planted data: what it finds, and what its checkpoint
holds.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature
from examples.movielens import data, generated
from examples.movielens.examples import FIRST_USER_ROW, Encoded, Sampler, encode, split_newest
from examples.movielens.settings import Settings
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.recipe.schema import read_recipe
from tests.units.export.movies_job import export

PLANTED = generated.Shape(users=240, movies=3_000, ratings=20_000, clusters=24, sequels=0.5)
SETTINGS = Settings(epochs=3, negatives=256)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "movielens"


@pytest.fixture(scope="module")
def movielens() -> data.MovieLens:
    return data.make(11, PLANTED)


@pytest.fixture(scope="module")
def encoded(movielens: data.MovieLens) -> Encoded:
    return encode(movielens)


@pytest.fixture(scope="module")
def trained(
    movielens: data.MovieLens, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, float]]:
    """Folder of a training, and the hit-rate of each method."""
    from examples.movielens import train

    out = tmp_path_factory.mktemp("trained")
    model = train.train(movielens, out, SETTINGS)
    encoded = encode(movielens)
    parts = data.split(movielens.ratings)
    seen = np.union1d(parts.train, parts.validation)
    qualities = train.quality(model, encoded, parts.test, seen, SETTINGS)
    return out, {quality.name: quality.hit_rate.value for quality in qualities}


@pytest.mark.slow
def test_training_on_planted_clusters_is_at_least_twice_as_good_as_popularity(
    trained: tuple[Path, dict[str, float]],
) -> None:
    _, hit_rates = trained
    assert hit_rates["retrieval"] >= 2 * hit_rates["popularity"] > 0


@pytest.mark.slow
def test_ranking_finds_planted_sequels_better_than_retrieval_alone(
    trained: tuple[Path, dict[str, float]],
) -> None:
    _, hit_rates = trained
    assert hit_rates["retrieval + ranking"] > hit_rates["retrieval"] + 0.05


@pytest.mark.slow
def test_checkpoint_holds_four_tables_with_slots_and_sizes(
    trained: tuple[Path, dict[str, float]],
) -> None:
    out, _ = trained
    checkpoint = open_checkpoint(out / "checkpoint")
    inventory = recognize(checkpoint)
    sizes = json.loads((out / "sizes.json").read_text())
    assert {table.name: (table.rows, table.dim) for table in inventory.tables} == {
        "users": (241, 32),
        "movies": (3_000, 64),
        "genres": (len((out / "genres.txt").read_text().splitlines()), 16),
        "hours": (24, 4),
    }
    assert (sizes["users"], sizes["movies"], sizes["hours"], sizes["movie_dim"]) == (
        241,
        3_000,
        24,
        64,
    )
    slots = [key for key in checkpoint.entries if "OPTIMIZER_SLOT/optimizer/accumulator" in key]
    assert len(slots) == 4


@pytest.mark.slow
def test_files_beside_the_checkpoint_hold_real_ids(
    trained: tuple[Path, dict[str, float]], movielens: data.MovieLens
) -> None:
    from pyarrow import parquet

    out, _ = trained
    assert [
        int(line) for line in (out / "movies.txt").read_text().splitlines()
    ] == movielens.movies.ids.tolist()
    corpus = parquet.read_table(out / "movies.parquet").to_pydict()
    assert corpus["movie_id"] == movielens.movies.ids.tolist()
    assert corpus["title"] == list(movielens.movies.titles)
    header, *popular = (out / "popular.csv").read_text().splitlines()
    assert header == "movie_id"
    assert len(set(popular)) == min(100, len(movielens.movies.ids))
    assert set(map(int, popular)) <= set(movielens.movies.ids.tolist())
    examples = [json.loads(line) for line in (out / "examples.jsonl").read_text().splitlines()]
    assert len(examples) == 240
    known_movies = set(movielens.movies.ids.tolist())
    assert all(
        example["movie_id"] in known_movies and set(example["history"]) <= known_movies
        for example in examples
    )
    lengths = [len(example["history"]) for example in examples]
    assert min(lengths) >= 10
    assert max(lengths) == SETTINGS.history


@pytest.mark.slow
def test_build_model_in_a_fresh_process_reads_the_sizes_and_imports_nothing_of_rowcast(
    trained: tuple[Path, dict[str, float]],
) -> None:
    code = (
        "import runpy, sys\n"
        f"model = runpy.run_path({str(EXAMPLE / 'model.py')!r})['build_model']()\n"
        "packages = {name.split('.')[0] for name in sys.modules} & {'bundle', 'export', 'service', "
        "'examples'}\n"
        "print(sorted(packages), len(model.trainable_variables), model.embedding.embedding_tables "
        "is not None)\n"
    )
    environment = {"MOVIELENS_DIR": str(trained[0]), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split("\n")[-2] == "[] 20 True"


def test_build_model_without_a_training_names_the_command_to_run(tmp_path: Path) -> None:
    from examples.movielens.model import read_sizes

    with pytest.raises(FileNotFoundError, match=r"python -m examples\.movielens\.train"):
        read_sizes(tmp_path)


def test_recipe_is_a_valid_one_and_keeps_row_0_for_strangers() -> None:
    recipe = read_recipe(EXAMPLE / "recipe.toml")
    assert {tower.role for tower in recipe.towers.values()} == {"query", "candidate", "ranking"}
    assert set(recipe.features) == set(recipe.inputs)
    assert {"companions", "closeness"} <= set(recipe.corpora["movies"].features)
    users = recipe.features["user_id"]
    assert users.ids.kind == "vocabulary"
    assert users.ids.first_row == FIRST_USER_ROW
    assert users.unknown.row == 0


def test_sampler_offers_no_watched_movie_as_negative_and_no_future_as_history(
    movielens: data.MovieLens, encoded: Encoded
) -> None:
    rows = data.split(movielens.ratings).train
    sampler = Sampler(encoded, rows, Settings(batch=128, negatives=64, user_dropout=0), seed=1)
    watched = {
        (user, movie) for user, movie in zip(encoded.users[rows], encoded.movies[rows], strict=True)
    }
    row_of = {
        (u, m): row for row, (u, m) in enumerate(zip(encoded.users, encoded.movies, strict=True))
    }
    batches = list(sampler.epoch())
    assert len(batches) == sampler.steps == len(rows) // 128
    for batch in batches[:3]:
        assert batch.movies.shape == (192,)
        for number, user in enumerate(batch.users):
            allowed = batch.movies[batch.allowed[number]]
            assert [movie for movie in allowed if (user, movie) in watched] == [
                batch.movies[number]
            ]
            begin = batch.histories.offsets[number]
            end = batch.histories.offsets[number + 1]
            history = [row_of[user, movie] for movie in batch.histories.values[begin:end]]
            target = row_of[user, batch.movies[number]]
            assert all(earlier < target for earlier in history)
            assert history == sorted(history)
            assert not history or target - history[-1] <= 10


def test_sampler_expects_each_movie_as_often_as_it_is_drawn(
    encoded: Encoded, movielens: data.MovieLens
) -> None:
    rows = data.split(movielens.ratings).train
    sampler = Sampler(encoded, rows, Settings(batch=128, negatives=64), seed=2)
    drawn = np.zeros(len(encoded.movie_ids))
    steps = 0
    for _ in range(12):
        for batch in sampler.epoch():
            drawn += np.bincount(batch.movies, minlength=len(drawn))
            steps += 1
    top = np.argsort(-sampler.expected)[:50]
    assert sampler.expected.sum() == pytest.approx(192, rel=1e-3)
    assert drawn[top] / steps == pytest.approx(sampler.expected[top], rel=0.2)


def test_split_newest_takes_the_last_of_each_viewer(
    encoded: Encoded, movielens: data.MovieLens
) -> None:
    parts = data.split(movielens.ratings)
    earlier, newest = split_newest(
        encoded, np.union1d(parts.train, parts.validation), data.HELD_OUT
    )
    assert np.array_equal(earlier, parts.train)
    assert np.array_equal(newest, parts.validation)


@pytest.mark.slow
def test_recipe_makes_a_bundle_in_which_all_tables_are_external(
    trained: tuple[Path, dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = trained
    recipe = (EXAMPLE / "recipe.toml").read_text().replace("../../build/demo", str(out))
    (tmp_path / "recipe.toml").write_text(recipe.replace("model.py:", f"{EXAMPLE / 'model.py'}:"))
    monkeypatch.setenv("MOVIELENS_DIR", str(out))
    page = export(tmp_path / "recipe.toml").manifest
    assert set(page.tables) == {"users", "movies", "genres", "hours", "movie_numbers"}
    read = {
        name: feature.table
        for name, feature in page.features.items()
        if isinstance(feature, EmbeddedFeature)
    }
    assert read == {
        "user_id": "users",
        "history@movies": "movies",
        "history@movie_numbers": "movie_numbers",
        "companions": "movie_numbers",
        "movie_id": "movies",
        "genres": "genres",
        "hour": "hours",
    }
    # A tower takes activations and numbers, never ids: nothing is looked up inside.
    assert all(
        tower_input.dtype == "float32"
        for tower in page.towers.values()
        for tower_input in tower.inputs
    )
    assert {
        (form.kind, form.precision) for tower in page.towers.values() for form in tower.forms
    } == {
        ("saved_model", "f32"),
        ("litert", "f32"),
    }
    assert page.verification.tables["movies"].rows_compared == 3_000
    assert page.indexes["movies"].kind == "tree_ah"
    assert page.indexes["movies"].recall.value >= 0.95
