"""A tutorial model of TensorFlow Recommenders, served over both transports without TensorFlow, is
what was trained.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.graphs.loading import load_tensorflow
from tests.differential.served_rankers import RankerService, assert_ranked
from tests.models import tutorials as tutorial
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

tf = load_tensorflow()
RECIPE = """
model = "movielens"
checkpoint = {{ path = "ckpt", object_path = "model" }}
code = {{ factory = "{file}:MovielensModel" }}
output = {{ root = "bundles" }}
inputs.user_id.dtype = "string"
inputs.timestamp.dtype = "float32"
inputs.movie_title.dtype = "string"
towers.query = {{ role = "query", outputs = {{ vector = "query" }} }}
towers.candidate = {{ role = "candidate", outputs = {{ vector = "candidate" }} }}
towers.ranking = {{ role = "ranking", outputs = {{ score = "score" }} }}
corpora.movies.file = "movies.csv"
corpora.movies.id = "movie_title"
corpora.movies.features = {{ movie_title = "movie_title" }}
indexes.movies = {{ corpus = "movies", query_tower = "query", candidate_tower = "candidate" }}
"""
INDEX = """
model = "users"
checkpoint = {{ path = "ckpt", object_path = "model" }}
code = {{ factory = "{file}:index_of_users", table_threshold = 0 }}
output = {{ root = "bundles" }}
inputs.user_id.dtype = "string"
towers.query = {{ role = "query", arguments = ["user_id"] }}
"""
TITLES = ["STAR wars!", "Toy\tStory  (1971) of an unknown word", "?", ""]


@pytest.mark.filterwarnings(
    "ignore:Even though the `tf.config:UserWarning"
)  # of adapt(), in a replay
@pytest.mark.nightly
def test_tutorial_s_titles_and_users_are_served_as_they_were_trained(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    tf.keras.utils.set_random_seed(3)
    model = tutorial.MovielensModel()
    model.compile(tf.keras.optimizers.legacy.Adagrad(0.5))
    random = np.random.default_rng(5)
    sent = {
        "user_id": random.choice([*tutorial.USERS, "nobody"], 240).astype(object),
        "timestamp": random.uniform(8.6e8, 9e8, 240).astype(np.float32),
        "movie_title": random.choice(tutorial.MOVIES, 240).astype(object),
    }
    model.fit(tf.data.Dataset.from_tensor_slices(sent).batch(48), epochs=1, verbose=0)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    (tmp_path / "movies.csv").write_text("\n".join(["movie_title", *tutorial.MOVIES]))
    (tmp_path / "recipe.toml").write_text(RECIPE.format(file=tutorial.__file__))
    page = export(tmp_path / "recipe.toml").manifest
    assert {form.kind for tower in page.towers.values() for form in tower.forms} == {
        "saved_model",
        "litert",
    }
    queries = model.query_model(
        {name: tf.constant(sent[name][:9]) for name in ("user_id", "timestamp")}
    ).numpy()
    movies = model.candidate_model(tf.constant(tutorial.MOVIES)).numpy()
    titles = [model.candidate_model(tf.constant([title])).numpy()[0] for title in TITLES[:2]]
    users = [
        {"user_id": user, "timestamp": float(time)}
        for user, time in zip(sent["user_id"][:9], sent["timestamp"][:9], strict=True)
    ]
    ranker_service.publish(tmp_path / "bundles" / "movielens")
    for client in ranker_service.clients:
        actual = client.retrieve(users, k=5, model="movielens")
        for place, scores in enumerate(queries @ movies.T):
            best = np.argsort(-scores, kind="stable")[:5]
            rounding = 1e-5 * (1 + np.median(np.abs(scores)))
            np.testing.assert_allclose(actual[place].scores, scores[best], rtol=1e-5, atol=rounding)
            candidates = {"movie_title": tutorial.MOVIES}
            assert_ranked(client, {"score": scores}, candidates, users[place], "movielens")
        sent_titles = [{"movie_title": title} for title in TITLES]
        made = client.embed(sent_titles, tower="candidate", model="movielens").vectors
        np.testing.assert_allclose(made[:2], titles, rtol=1e-5, atol=1e-5)
        assert np.isfinite(made).all()


def test_query_of_a_retrieval_layer_is_what_it_compares(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    index = tutorial.index_of_users()
    expected = index.query_model(tf.constant(tutorial.USERS)).numpy()
    tf.train.Checkpoint(model=index).write(str(tmp_path / "ckpt" / "model"))
    (tmp_path / "recipe.toml").write_text(INDEX.format(file=tutorial.__file__))
    page = export(tmp_path / "recipe.toml").manifest
    assert page.towers["query"].outputs[0].shape == (None, 8)
    ranker_service.publish(tmp_path / "bundles" / "users")
    users = [{"user_id": user} for user in tutorial.USERS]
    for client in ranker_service.clients:
        np.testing.assert_array_equal(client.embed(users, model="users").vectors, expected)
