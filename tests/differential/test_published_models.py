"""What published recommenders have in common, exported and served: the results equal those of the
model, and what cannot be exported is rejected with a remedy that helps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import Client, RowcastError

from export.errors import NotConvertible, VerificationFailed
from export.graphs.loading import load_tensorflow
from export.jobs import bundle_job
from export.jobs.preparation import Prepared
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.differential.served_rankers import RankerService
from tests.units.export.forked_runs import call_forked
from tests.units.export.movies_job import export

tf = load_tensorflow()

import keras  # noqa: E402 after TensorFlow is loaded as the exporter needs it

from tests.models import graph_mode  # noqa: E402
from tests.models import published_models as models  # noqa: E402

pytest.importorskip("keras_rs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config:UserWarning"),  # by predict()
]
RECIPE = """
model = "{factory}"
checkpoint = {{ path = "{checkpoint}" }}
code = {{ factory = "tests.models.published_models:{factory}", table_threshold = 0 }}
output = {{ root = "bundles" }}
{rest}
"""
TOWERS = """
inputs.history = { dtype = "int32", shape = [6] }
inputs.movie.dtype = "int32"
towers.query = { role = "query", call = "query", inputs = ["history"] }
towers.candidate = { role = "candidate", call = "candidate", inputs = ["movie"] }
"""
RATING = """
inputs.history = { dtype = "int32", shape = [6] }
inputs.seq_length.dtype = "int32"
inputs.timestamp.dtype = "int64"
inputs.movie.dtype = "int32"
features.movie.role = "candidate"
towers.rating.role = "ranking"
"""
LISTS = """
inputs.user_id.dtype = "int32"
inputs.{candidate} = {{ dtype = "{dtype}", shape = [{length}] }}
features.{candidate}.role = "candidate"
towers.rating.role = "ranking"
"""
HISTORY = """
inputs.history = { dtype = "int32", shape = [6] }
towers.query.role = "query"
"""
USER = """
inputs.user.dtype = "int32"
towers.query.role = "query"
"""
PAIRS = """
inputs.user.dtype = "int32"
inputs.movie.dtype = "int32"
features.movie.role = "candidate"
towers.score.role = "ranking"
"""
GRAPH_MODE = """
inputs.user.dtype = "int32"
inputs.history = { dtype = "int64", shape = [4] }
inputs.movie.dtype = "int32"
towers.query = { role = "query", call = "query", arguments = [["user", "history"]] }
towers.candidate = { role = "candidate", call = "candidate", inputs = ["movie"] }
"""
HISTORIES = np.array([[1, 2, 3, 4, 5, 6], [9, 8, 7, 0, 0, 0], [5, 0, 0, 0, 0, 0]], np.int32)
"""Padded at their ends."""
WITH_EMPTY = np.concatenate([HISTORIES, np.zeros((1, 6), np.int32)])


def write_project(factory: str, model: Any, directory: Path, sections: str = USER) -> Path:
    """Saves a model, and writes its recipe.

    Args:
      factory: The name of the function or class that makes the model.
      model: The model, which was called, so that it has its variables.
      directory: The directory of the recipe and the checkpoint.
      sections: The other sections of the recipe.
    """
    if isinstance(model, keras.Model):
        checkpoint = f"{factory}.weights.h5"
        model.save_weights(directory / checkpoint)
    else:
        checkpoint = "ckpt"
        tf.train.Checkpoint(model).write(str(directory / "ckpt" / "model"))
    recipe = directory / "recipe.toml"
    recipe.write_text(RECIPE.format(factory=factory, checkpoint=checkpoint, rest=sections))
    return recipe


def published(factory: str, model: Any, directory: Path, sections: str = USER) -> Published:
    """Saves a model, and exports it."""
    return export(write_project(factory, model, directory, sections))


def prepared(recipe: Path) -> Prepared:
    return bundle_job.prepare(read_recipe(recipe), recipe.parent, ExportSettings())


def seeded(factory: str) -> Any:
    """Returns a model with other weights in each of its layers."""
    keras.utils.set_random_seed(7)
    return getattr(models, factory)()


def vectors(client: Client, features: dict[str, NDArray[Any]], model: str, tower: str) -> Any:
    """Returns what a tower gives for examples."""
    names = list(features)
    rows = zip(*(features[name].tolist() for name in names), strict=True)
    sent = [dict(zip(names, row, strict=True)) for row in rows]
    return client.embed(sent, tower=tower, model=model).vectors


LOADED = """
import pathlib

import keras


def loaded():
    return keras.models.load_model(pathlib.Path(__file__).with_name("model.keras"))
"""


def test_trained_model_that_the_factory_loads(tmp_path: Path) -> None:
    (tmp_path / "factory.py").write_text(LOADED)
    model = seeded("functional")
    model.fit({"user": np.arange(3)}, np.ones((3, models.DIM)), verbose=0)
    model.save(tmp_path / "model.keras")
    recipe = tmp_path / "recipe.toml"
    page = RECIPE.format(factory="loaded", checkpoint="model.keras", rest=USER)
    recipe.write_text(page.replace("tests.models.published_models", "factory.py"))
    assert [table.name for table in prepared(recipe).inventory.tables] == ["users"]


def test_compiled_model_with_recurrent_layers_and_a_shared_table(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("sequential_retrieval")
    actual = published("sequential_retrieval", model, tmp_path, TOWERS)
    assert not [note for note in actual.notes if "also holds" in note]
    assert "litert" in {form.kind for form in actual.manifest.towers["query"].forms}
    ranker_service.publish(tmp_path / "bundles" / "sequential_retrieval")
    expected = np.asarray(model.query({"history": WITH_EMPTY}))
    for client in ranker_service.clients:
        given = vectors(client, {"history": WITH_EMPTY}, "sequential_retrieval", "query")
        np.testing.assert_allclose(given, expected, atol=1e-6)


def test_layers_made_in_a_call_and_classes_of_any_name(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("GRU4Rec")
    inputs = {"user": np.arange(5, dtype=np.int32), "movie": np.arange(7, 12, dtype=np.int32)}
    expected = model(inputs).numpy().ravel()
    model.save_weights(tmp_path / "weights.h5")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(factory="GRU4Rec", checkpoint="weights.h5", rest=PAIRS))
    export(recipe)
    ranker_service.publish(tmp_path / "bundles" / "GRU4Rec")
    for client in ranker_service.clients:
        scores = [
            client.rank({"user": user}, candidate_features={"movie": [movie]}, model="GRU4Rec")[0]
            for user, movie in zip(*map(np.ndarray.tolist, inputs.values()), strict=True)
        ]
        actual = [ranked[0].score for ranked in scores]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_model_that_is_built_and_trained_with_eager_execution_off(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    program = Path(models.__file__).with_name("graph_mode.py")
    call_forked(graph_mode.train, tmp_path)  # in a process whose execution stays off
    recipe = tmp_path / "recipe.toml"
    page = RECIPE.format(factory="two_towers", checkpoint="weights.h5", rest=GRAPH_MODE)
    recipe.write_text(page.replace("tests.models.published_models", str(program)))
    tables = export(recipe).manifest.tables.values()
    # The movies' rows stay inside: the candidate tower reads all of them.
    assert {table.rows for table in tables} == {graph_mode.USERS}
    assert tf.executing_eagerly()
    ranker_service.publish(tmp_path / "bundles" / "two_towers")
    with np.load(tmp_path / "expected.npz") as expected:
        for client in ranker_service.clients:
            for tower, names in (("query", ("user", "history")), ("candidate", ("movie",))):
                features = {name: expected[name] for name in names}
                actual = vectors(client, features, "two_towers", tower)
                np.testing.assert_allclose(actual, expected[tower], atol=1e-6)


def test_private_towers_with_masked_recurrent_layers(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("PrivateTowers")
    movies = np.arange(3, dtype=np.int32)
    model.candidate({"movie": movies})
    expected = model.query({"history": WITH_EMPTY}).numpy()
    actual = published("PrivateTowers", model, tmp_path, TOWERS)
    assert set(actual.manifest.tables) == {
        "layer_with_weights-0",
        "candidate_model.layer_with_weights-0.embeddings",
    }
    assert "litert" in {form.kind for form in actual.manifest.towers["query"].forms}
    ranker_service.publish(tmp_path / "bundles" / "PrivateTowers")
    for client in ranker_service.clients:
        given = vectors(client, {"history": WITH_EMPTY}, "PrivateTowers", "query")
        np.testing.assert_allclose(given, expected, atol=1e-6)


def test_timestamps_in_buckets_and_an_input_that_nothing_reads(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("Rating")
    boundaries = np.array(models.TIMES, np.int64)
    moments = np.concatenate([boundaries[:8], boundaries[:8] + 1, boundaries[:8] - 1])
    movies = np.arange(len(moments), dtype=np.int32)
    inputs = {
        "history": np.tile(HISTORIES[:1], (len(moments), 1)),
        "movie": movies,
        "timestamp": moments,
    }
    expected = model(inputs).numpy().ravel()
    actual = published("Rating", model, tmp_path, RATING)
    assert {table.rows for table in actual.manifest.tables.values()} == {models.MOVIES, 52}
    assert actual.manifest.unread_inputs == ("seq_length",)
    assert [note for note in actual.notes if "no tower reads 'seq_length'" in note]
    ranker_service.publish(tmp_path / "bundles" / "Rating")
    for client in ranker_service.clients:
        contexts = [
            {"history": HISTORIES[0].tolist(), "timestamp": int(moment), "seq_length": 6}
            for moment in moments
        ]
        scores = [
            client.rank(context, candidate_features={"movie": [int(movie)]}, model="Rating")[0]
            for context, movie in zip(contexts, movies, strict=True)
        ]
        given = [ranked[0].score for ranked in scores]
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(
            RowcastError,
            match="unknown name 'seq_len'; a feature of tower 'rating'",
        ):
            client.rank(
                {**contexts[0], "seq_len": 6}, candidate_features={"movie": [1]}, model="Rating"
            )


@pytest.mark.parametrize(
    ("factory", "candidate", "dtype", "values"),
    [
        ("Listwise", "movie_id", "int32", np.arange(4, dtype=np.int32)),
        ("ListwiseOfTfrs", "movie_title", "string", np.array(["title 3", "title 9", "", "x"])),
    ],
)
def test_list_of_candidates_is_rejected_with_the_shape_that_serves_it(
    factory: str,
    candidate: str,
    dtype: str,
    values: NDArray[Any],
    tmp_path: Path,
    ranker_service: RankerService,
) -> None:
    model = seeded(factory)
    scores = model({"user_id": tf.constant([5]), candidate: tf.constant(values[np.newaxis])})
    recipe = LISTS.format(candidate=candidate, dtype=dtype, length=len(values))
    with pytest.raises(NotConvertible) as rejected:
        published(factory, model, tmp_path, recipe)
    remedy = f'write inputs.{candidate}.shape = [1] with features.{candidate}.role = "candidate"'
    assert remedy in str(rejected.value)
    published(factory, model, tmp_path, LISTS.format(candidate=candidate, dtype=dtype, length=1))
    ranker_service.publish(tmp_path / "bundles" / factory)
    for client in ranker_service.clients:
        (ranked,) = client.rank(
            {"user_id": 5}, candidate_features={candidate: values.tolist()}, model=factory
        )
        given = [item.score for item in sorted(ranked, key=lambda item: item.position)]
        np.testing.assert_allclose(given, np.asarray(scores).ravel(), rtol=1e-5, atol=1e-6)


def test_index_that_the_constructor_fills_has_the_vectors_of_the_checkpoint(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("Indexed")
    users = np.arange(20, dtype=np.int32)
    model({"user": users})
    model.query_layer.embeddings.assign(model.query_layer.embeddings * 9)
    model.update_candidates()
    expected = model({"user": users})
    outputs = 'towers.query.outputs = { vector = "query", best = "best" }\n'
    published("Indexed", model, tmp_path, f'{USER}{outputs}towers.query.result = "best"\n')
    ranker_service.publish(tmp_path / "bundles" / "Indexed")
    for client in ranker_service.clients:
        given = vectors(client, {"user": users}, "Indexed", "query")
        assert np.array_equal(given, expected["best"])


def test_numbers_of_untrained_layers_in_a_tower_are_rejected_unless_they_are_saved(
    tmp_path: Path,
) -> None:
    users = {"user": np.arange(3)}
    kept = seeded("KeepsNumbers")
    kept(users)
    with pytest.raises(VerificationFailed, match=r"keep them in a variable of the model, which"):
        published("KeepsNumbers", kept, tmp_path)
    saved = seeded("KeepsSavedNumbers")
    saved(users)
    published("KeepsSavedNumbers", saved, tmp_path)


def test_tower_that_rejects_an_empty_history_is_served(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = seeded("LastPosition")
    expected = np.asarray(model({"history": HISTORIES}))
    lines = [json.dumps({"history": row.tolist()}) for row in HISTORIES]
    (tmp_path / "examples.jsonl").write_text("\n".join(lines))
    sections = f'{HISTORY}verify.examples = "examples.jsonl"\n'
    published("LastPosition", model, tmp_path, sections)
    ranker_service.publish(tmp_path / "bundles" / "LastPosition")
    for client in ranker_service.clients:
        given = vectors(client, {"history": HISTORIES}, "LastPosition", "query")
        np.testing.assert_allclose(given, expected, atol=1e-6)
        with pytest.raises(RowcastError, match="at least one id that the model does not mask"):
            client.embed([{"history": [0] * 6}], tower="query", model="LastPosition")


def test_vectors_of_all_positions_are_noted(tmp_path: Path) -> None:
    model = seeded("LastPosition")
    model({"history": HISTORIES})
    actual = published(
        "LastPosition", model, tmp_path, f'{HISTORY}towers.query.call = "positions"\n'
    )
    assert (
        "tower 'query': 'result' is [6, 4] for each query, and a retrieval compares vectors of one "
        "axis: let the call return one of them, such as the last position, vectors[:, -1]"
    ) in actual.notes


def test_kernel_that_two_layers_share_is_no_variable_that_the_code_lacks(tmp_path: Path) -> None:
    model = seeded("Tied")
    model({"user": np.arange(3)})
    assert prepared(write_project("Tied", model, tmp_path)).also_stored == ()
