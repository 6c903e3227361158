"""The example's model, trained for real on planted data: what it finds."""

from pathlib import Path

import numpy as np
import pytest

from examples.movielens import data, generated
from examples.movielens.examples import FIRST_USER_ROW, Encoded, Sampler, encode
from examples.movielens.settings import Settings
from export.recipe.schema import read_recipe

PLANTED = generated.Shape(users=240, movies=3_000, ratings=20_000, clusters=24, sequels=0.5)
SETTINGS = Settings(epochs=3, negatives=256)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "movielens"


@pytest.fixture(scope="module")
def movielens() -> data.MovieLens:
    return data.make(11, PLANTED)


@pytest.fixture(scope="module")
def encoded(movielens: data.MovieLens) -> Encoded:
    return encode(movielens)


@pytest.mark.nightly
def test_training_finds_planted_clusters_and_ranking_their_sequels(
    movielens: data.MovieLens, encoded: Encoded, tmp_path: Path
) -> None:
    from examples.movielens import train

    model = train.train(movielens, tmp_path, SETTINGS)
    parts = data.split(movielens.ratings)
    seen = np.union1d(parts.train, parts.validation)
    qualities = train.quality(model, encoded, parts.test, seen, SETTINGS)
    hit_rates = {quality.name: quality.hit_rate.value for quality in qualities}
    assert hit_rates["retrieval"] >= 2 * hit_rates["popularity"] > 0
    assert hit_rates["retrieval + ranking"] > hit_rates["retrieval"] + 0.05


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
