"""Models with the calls of published recommenders, unchanged: what is served equals what they
return.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.errors import NotConvertible, UsageError
from export.graphs.loading import load_tensorflow
from tests.differential.served_rankers import RankerService
from tests.units.export.movies_job import export

tf = load_tensorflow()

import keras  # noqa: E402 after TensorFlow

from tests.models import published_calls as models  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer 'nested_ranker':UserWarning"),  # it is not built
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
]
to_numpy = keras.ops.convert_to_numpy
N = 20
RECIPE = """
model = "{factory}"
checkpoint = {{ path = "{factory}.weights.h5" }}
code = {{ factory = "tests.models.published_calls:{factory}", table_threshold = 0 }}
output = {{ root = "bundles" }}
{rest}
"""
RETRIEVAL = """
inputs.user_id.dtype = "int32"
inputs.movie_id.dtype = "int32"
towers.query = { role = "query", arguments = ["user_id"] }
towers.candidate = { role = "candidate", call = "candidate_embedding", arguments = ["movie_id"] }
"""
NESTED = """
inputs.dense_features = { dtype = "float32", shape = [3] }
inputs."sparse_features.0".dtype = "int32"
inputs."sparse_features.1".dtype = "int32"
towers.rating = { role = "ranking" }
features."sparse_features.1".role = "candidate"
"""
ARGUMENTS = """
inputs = { user.dtype = "int32", movie.dtype = "int32", other.dtype = "int32", m.dtype = "bool" }
features.movie.role = "candidate"
features.other.role = "candidate"
[towers.rating]
role = "ranking"
arguments = { users = "user", movies = ["movie", "other"], known = "m", scale = 0.5 }
outputs = { like = 1, click = 2 }
result = "click"
"""
NEGATIVES = """
inputs.user.dtype = "int32"
inputs.positive.dtype = "int32"
inputs.negative = { dtype = "int32", shape = [2] }
features.positive.role = "candidate"
towers.rating = { role = "ranking", outputs = { score = ["logits", 0, 0] } }
"""
RESULTS = """
inputs = { user.dtype = "int32", movie.dtype = "int32" }
features.movie.role = "candidate"
towers.rating = { role = "ranking", outputs = { liked = "like", clicked = 0 }, result = "liked" }
"""

TITLES = """
inputs.title.dtype = "string"
towers.query.role = "query"
"""


def published(factory: str, recipe: str, directory: Path, *arguments: Any, **by_name: Any) -> Any:
    """Exports a model with random weights; returns it."""
    keras.utils.set_random_seed(7)
    model = getattr(models, factory)()
    model(*arguments, **by_name)
    model.save_weights(directory / f"{factory}.weights.h5")
    (directory / "recipe.toml").write_text(RECIPE.format(factory=factory, rest=recipe))
    export(directory / "recipe.toml")
    return model


def scores(
    ranker_service: RankerService,
    model: str,
    heads: list[str],
    context: dict[str, Any],
    features: dict[str, Any],
) -> Iterator[dict[str, NDArray[np.float64]]]:
    """Yields the heads of candidates, in the order of the request, by each transport."""
    for client in ranker_service.clients:
        (ranked,) = client.rank(context, candidate_features=features, heads=heads, model=model)
        in_order = sorted(ranked, key=lambda item: item.position)
        yield {head: np.array([item.heads[head] for item in in_order]) for head in heads}


def test_array_for_an_argument_and_retrieval_inside(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = published("retrieval", RETRIEVAL, tmp_path, np.zeros(1, "int32"), training=True)
    ranker_service.publish(tmp_path / "bundles" / "retrieval")
    users = np.arange(0, models.USERS, models.USERS // N, dtype="int32")
    expected = to_numpy(model(users, training=True))
    movies = to_numpy(model.candidate_embedding(users))
    for client in ranker_service.clients:
        sent = [{"user_id": int(user)} for user in users]
        vectors = client.embed(sent, tower="query", model="retrieval").vectors
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        sent = [{"movie_id": int(user)} for user in users]
        rows = client.embed(sent, tower="candidate", model="retrieval").vectors
        assert np.array_equal(rows, movies)


def test_nested_inputs(tmp_path: Path, ranker_service: RankerService) -> None:
    def given(movies: NDArray[np.int32]) -> dict[str, Any]:
        numbers = np.tile(np.array([0.5, -1, 2], np.float32), (len(movies), 1))
        ids = {"0": np.full(len(movies), 7, np.int32), "1": movies}
        return {"dense_features": numbers, "sparse_features": ids}

    movies = np.arange(N, dtype=np.int32) * 3
    model = published("nested_ranker", NESTED, tmp_path, given(movies))
    ranker_service.publish(tmp_path / "bundles" / "nested_ranker")
    context = {"dense_features": [0.5, -1, 2], "sparse_features.0": 7}
    features = {"sparse_features.1": movies.tolist()}
    for heads in scores(ranker_service, "nested_ranker", ["result"], context, features):
        np.testing.assert_allclose(
            heads["result"], to_numpy(model(given(movies))).ravel(), atol=1e-6
        )


def test_several_arguments_and_results_by_position(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    def given(known: bool) -> dict[str, Any]:
        movies = [np.arange(N, dtype="int32"), np.arange(N, dtype="int32") * 2]
        users = np.full(N, 5, "int32")
        return {"users": users, "movies": movies, "known": np.full(N, known), "scale": 0.5}

    model = published("many_arguments", ARGUMENTS, tmp_path, **given(known=True), training=False)
    ranker_service.publish(tmp_path / "bundles" / "many_arguments")
    features = {"movie": list(range(N)), "other": list(range(0, 2 * N, 2))}
    for known in (True, False):
        _, like, click = model(**given(known), training=False)
        context = {"user": 5, "m": int(known)}
        for heads in scores(ranker_service, "many_arguments", ["like", "click"], context, features):
            np.testing.assert_allclose(heads["like"], to_numpy(like).ravel(), atol=1e-6)
            np.testing.assert_allclose(heads["click"], to_numpy(click).ravel(), atol=1e-6)


def test_score_beside_that_of_a_negative_which_requests_do_not_send(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    movies = np.arange(N, dtype="int32")
    inputs = {"user": np.full(N, 9, "int32"), "positive": movies, "negative": np.c_[movies, movies]}
    model = published("positive_and_negative", NEGATIVES, tmp_path, inputs)
    ranker_service.publish(tmp_path / "bundles" / "positive_and_negative")
    expected = to_numpy(model(inputs)["logits"][0])[:, 0]
    features = {"positive": movies.tolist()}
    for heads in scores(ranker_service, "positive_and_negative", ["score"], {"user": 9}, features):
        np.testing.assert_allclose(heads["score"], expected, atol=1e-6)


def test_list_of_results_by_name_and_position(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    given = [np.full(N, 9, "int32"), np.arange(N, dtype="int32")]
    model = published("list_of_results", RESULTS, tmp_path, given)
    ranker_service.publish(tmp_path / "bundles" / "list_of_results")
    click, like = model(given)
    features = {"movie": list(range(N))}
    names = ["liked", "clicked"]
    for heads in scores(ranker_service, "list_of_results", names, {"user": 9}, features):
        np.testing.assert_allclose(heads["liked"], to_numpy(like).ravel(), atol=1e-6)
        np.testing.assert_allclose(heads["clicked"], to_numpy(click).ravel(), atol=1e-6)


def test_examples_for_which_the_model_itself_gives_nan_are_noted(tmp_path: Path) -> None:
    titles = ["toy story", "", "heat", "?!", "story of nothing"]
    model = published("mean_of_words", TITLES, tmp_path, {"title": tf.constant(titles)})
    recorded = to_numpy(model({"title": tf.constant(titles)}))
    without_words = np.isnan(recorded).any(axis=1)
    assert without_words.tolist() == [False, True, False, True, False]

    examples = [
        {"title": title, "vector": row.tolist()}
        for title, row in zip(titles, recorded, strict=True)
    ]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, examples)))
    recipe = tmp_path / "recipe.toml"
    text = recipe.read_text() + 'verify.examples = "examples.jsonl"\n'
    recipe.write_text(text)
    notes = " ".join(export(recipe).notes)
    assert "the model itself gives nan in 2 of 5 examples, first in example 1" in notes

    recipe.write_text(text + 'verify.expected.result = "vector"\n')
    with pytest.raises(UsageError, match=r"'vector' of .* holds nan in row 2"):
        export(recipe)


@pytest.mark.parametrize(
    ("factory", "recipe", "old", "new", "message"),
    [
        (
            "retrieval",
            RETRIEVAL,
            'arguments = ["user_id"] }',
            'inputs = ["user_id"] }',
            'seems to take the input itself: write arguments = ["user_id"] in its tower',
        ),
        (
            "retrieval",
            RETRIEVAL,
            '["user_id"]',
            '["user"]',
            "towers.query.arguments names the input 'user', which the recipe does not declare; it "
            "declares user_id, movie_id",
        ),
        (
            "retrieval",
            RETRIEVAL,
            '"candidate_embedding"',
            '"candidates"',
            "call 'candidates': Retrieval has no attribute 'candidates'; its layers are ",
        ),
        (
            "many_arguments",
            ARGUMENTS,
            "scale = 0.5",
            "factor = 0.5",
            "takes users, movies, known, scale, training, and is given what 'arguments' names: ",
        ),
        (
            "many_arguments",
            ARGUMENTS,
            "scale = 0.5",
            "scale = 0.5, training = true",
            "is given 'training' by the tower's 'arguments'; a tower is exported in inference mode",
        ),
        (
            "many_arguments",
            ARGUMENTS,
            "like = 1",
            "like = 3",
            "returns a list of 3 results; towers.rating.outputs names 3",
        ),
        (
            "many_arguments",
            ARGUMENTS,
            "outputs = { like = 1, click = 2 }\nresult",
            "#",
            "returns a list of 3 results; name those wanted by their positions, as in "
            "towers.rating.outputs = { score = 0 }",
        ),
        (
            "list_of_results",
            RESULTS,
            '"like"',
            '"share"',
            "returns a list of 2 results, which are called click, like; towers.rating.outputs "
            "names 'share'",
        ),
        (
            "nested_ranker",
            NESTED,
            "sparse_features.",
            "sparse_features_",
            "A dot in the name of an input is a level of the dict; where the model's own name has "
            "the dot, write the dict as the tower's 'arguments'",
        ),
    ],
)
def test_call_that_the_recipe_states_wrongly_is_rejected(
    factory: str, recipe: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    models.retrieval().save_weights(tmp_path / f"{factory}.weights.h5")
    text = RECIPE.format(factory=factory, rest=recipe.replace(old, new))
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises((UsageError, NotConvertible)) as rejected:
        export(tmp_path / "recipe.toml")
    assert message in str(rejected.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('inputs = { "a.b".dtype = "int32", a.dtype = "int32" }', "'a.b' is inside 'a'"),
        ('inputs = { "a..b".dtype = "int32" }', "'a..b' has an empty level"),
        ('inputs = { a = { dtype = "bool", kind = "ragged" } }', "a ragged input has no dtype"),
        ('inputs = { a.dtype = "int32" }\ntowers.t = { role = "query", arguments = [] }', "name"),
        (
            'inputs = { a.dtype = "int32" }\ntowers.t = { role = "query", arguments = ["a"], '
            'inputs = ["b"] }',
            "'inputs' beside 'arguments' states the order of the same inputs: a were expected",
        ),
        (
            'inputs = { a.dtype = "int32" }\ntowers.t = { role = "query", arguments = '
            '["a", 2020-01-01] }',
            "2020-01-01 is no argument",
        ),
    ],
)
def test_recipe_with_other_names_or_arguments_is_rejected(
    line: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(factory="retrieval", rest=line))
    with pytest.raises(UsageError) as rejected:
        export(tmp_path / "recipe.toml")
    assert message in str(rejected.value)
