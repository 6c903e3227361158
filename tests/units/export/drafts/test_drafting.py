"""Drafts of recipes: they hold what a model, its examples and its checkpoint show."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.loading import load_tensorflow
from export.recipe.schema import ExportJob, FeatureSection
from export.recipe.settings import ExportSettings
from tests.units.export.movies_job import export

load_tensorflow()

import keras  # noqa: E402 after TensorFlow

from export.drafts.drafting import draft_recipe  # noqa: E402 after TensorFlow
from export.jobs.preparation import prepare  # noqa: E402
from export.model_code.factories import load_factory  # noqa: E402
from tests.models import published_calls as models  # noqa: E402

FACTORIES = "tests.models.published_calls"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer ':UserWarning"),  # of calls that Keras tries
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a functional model."""
    directory = tmp_path_factory.mktemp("draft")
    # Models of other tests count towards the names of layers.
    keras.utils.clear_session()
    models.list_of_results().save_weights(directory / "model.weights.h5")
    return directory


def drafted(factory: str, folder: Path, examples: Path | None = None) -> tuple[str, Any]:
    text = draft_recipe(f"{FACTORIES}:{factory}", "model.weights.h5", examples, folder).text
    return text, tomllib.loads(text)


def test_draft_of_a_functional_model_is_a_recipe_that_publishes(folder: Path) -> None:
    text, recipe = drafted("list_of_results", folder)
    assert recipe["inputs"] == {"user": {"dtype": "int32"}, "movie": {"dtype": "int32"}}
    assert recipe["towers"]["tower"]["outputs"] == {"click": "click", "like": "like"}
    assert "#   embedding: 300 rows of 8\n#   embedding_1: 400 rows of 8\n" in text
    assert text.startswith("#:schema ./recipe-schema.json\n")
    assert recipe["features"] == {"movie": {"role": "candidate"}}
    (folder / "recipe.toml").write_text(text)
    published = export(folder / "recipe.toml")
    assert published.manifest.towers["tower"].role == "ranking"


def test_draft_finds_the_inputs_that_a_call_asks_for(folder: Path) -> None:
    text, recipe = drafted("nested_ranker", folder)
    assert set(recipe["inputs"]) == {"dense_features", "sparse_features.0", "sparse_features.1"}
    assert text.count("Nothing states them") == 3


def test_draft_takes_inputs_of_examples(folder: Path) -> None:
    examples = folder / "examples.jsonl"
    row = {
        "user": 7,
        "movie": 8,
        "age": 0.5,
        "tags": ["a"],
        "last": [1, 2, 3],
        "new": True,
        "seen": [True],
        "at": None,
    }
    rows = [row, row | {"tags": ["a", "b"], "seen": [True, False], "age": 3}]
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, recipe = drafted("many_arguments", folder, examples)
    assert "\n# columns of the examples that no input takes: at\n" in text
    # The call does not run, so that nothing shows how its lists are to be read.
    question = "how did training fill up and cut lists?"
    assert recipe["inputs"] == {
        "user": {"dtype": "int64"},
        "movie": {"dtype": "int64"},
        "age": {"dtype": "float32"},
        "tags": {"dtype": "string", "kind": "ragged", "question": question},
        "last": {"dtype": "int64", "shape": [3]},
        "new": {"dtype": "bool"},
        "seen": {"dtype": "int32", "kind": "ragged", "question": question},
    }
    assert recipe["verify"]["examples"] == str(examples)


def test_draft_says_why_a_call_could_not_be_run(folder: Path) -> None:
    text, recipe = drafted("many_arguments", folder)
    assert recipe["towers"]["tower"]["arguments"] == ["users", "movies", "known", "scale"]
    assert "# The call could not be run with these inputs: " in text
    assert "name examples as --examples FILE" in text


KERAS = """
import keras
import tensorflow as tf


class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.user_ids = keras.layers.StringLookup(vocabulary=["u1", "u2"])
        self.users = keras.layers.Embedding(3, 4)
        self.movies = keras.layers.Embedding(50, 4)
        self.mean = keras.layers.GlobalAveragePooling1D()
        self.top = keras.layers.Dense(1)

    def call(self, inputs):
        user = self.users(self.user_ids(inputs["user_id"]))
        watched = self.mean(self.movies(inputs["history"]))
        return self.top(keras.ops.concatenate([user, watched], axis=-1))


def build():
    model = Ranker()
    model({"user_id": tf.constant(["u1"]), "history": tf.constant([[1]])})
    return model


def write(folder):
    build().save_weights(folder / "checkpoint.weights.h5")
"""
JAX = """
import jax
import jax.numpy as jnp
import numpy as np


def query(tables, inputs):
    return tables["users"][inputs["user_id"]] + tables["movies"][inputs["history"]].mean(axis=1)


def candidate(tables, inputs):
    return tables["movies"][inputs["movie_id"]] * inputs["age"][:, None]


def rank(tables, inputs):
    return (query(tables, inputs) * candidate(tables, inputs)).sum(axis=1)


def build():
    table = jax.ShapeDtypeStruct((50, 4), jnp.float32)
    return {"users": table, "movies": table}, {f.__name__: f for f in (query, candidate, rank)}


def write(folder):
    import orbax.checkpoint as ocp

    tables = {name: np.ones((50, 4), np.float32) for name in ("users", "movies")}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", {"params": tables})
"""
METHODS = """
import tensorflow as tf


class Towers(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.users = tf.keras.layers.Embedding(50, 4)
        self.movies = tf.keras.layers.Embedding(50, 4)
        self.top = tf.keras.layers.Dense(4)

    def query(self, inputs):
        return self.top(self.users(inputs["user_id"]))

    def candidate(self, inputs):
        return self.movies(inputs["movie_id"]) * inputs["age"][:, None]

    def call(self, inputs):
        return {"score": tf.reduce_sum(self.query(inputs) * self.candidate(inputs), 1)}


def build():
    model = Towers()
    model({"user_id": tf.constant([1]), "movie_id": tf.constant([1]), "age": tf.constant([1.0])})
    return model


def write(folder):
    tf.train.Checkpoint(net=build()).write(str(folder / "checkpoint"))
"""
SEQUENCES = """
import keras


class Towers(keras.Model):
    def __init__(self):
        super().__init__()
        self.movie_ids = keras.layers.IntegerLookup(vocabulary=[1, 2, 3], mask_token=0)
        self.movies = keras.layers.Embedding(5, 4, mask_zero=True)
        self.last_movies = keras.layers.GRU(4)

    def query(self, inputs):
        return self.last_movies(self.movies(self.movie_ids(inputs["history"])))

    def candidate(self, inputs):
        return self.movies(self.movie_ids(inputs["movie_id"])) * inputs["age"][:, None]

    def call(self, inputs):
        return {"score": keras.ops.sum(self.query(inputs) * self.candidate(inputs), axis=1)}


def build():
    return Towers()


def write(folder):
    model = build()
    ids = keras.ops.array([1])
    model({"history": ids[:, None], "movie_id": ids, "age": keras.ops.array([1.0])})
    model.save(folder / "checkpoint.keras")
"""
ROLES = {"query": "query", "candidate": "candidate", "rank": "ranking"}


@pytest.mark.parametrize(
    ("code", "checkpoint", "user_id", "history", "roles"),
    [
        # Other tests draft models of Keras 3 in the gate.
        pytest.param(
            *(KERAS, "checkpoint.weights.h5", "string", None, {"tower": "ranking"}),
            marks=pytest.mark.nightly,
        ),
        (JAX, "checkpoint", "int32", (3,), ROLES),
        (METHODS, "checkpoint", "int64", None, {"tower": "ranking"} | ROLES),
    ],
    ids=["keras", "jax", "methods"],
)
def test_draft_can_be_planned_as_it_is(
    code: str,
    checkpoint: str,
    user_id: str,
    history: tuple[int, ...] | None,
    roles: dict[str, str],
    tmp_path: Path,
) -> None:
    if code is JAX:
        pytest.importorskip("orbax.checkpoint")
    (tmp_path / "model.py").write_text(code)
    arguments = {"folder": tmp_path}
    load_factory("model.py:write", tmp_path, arguments=arguments).function(tmp_path)
    file = tmp_path / "examples.jsonl"
    rows = [
        {"user_id": f"u{row}" if user_id == "string" else row, "movie_id": 3, "age": 2.5}
        | {"history": [1, 2, 3][: row + 1]}
        for row in range(3)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files: list[Path | None] = [None, file]
    if code is KERAS:
        # Each call that is tried builds the model anew, which layers of Keras take long for.
        files = [None]
    for examples in files:
        draft = draft_recipe("model.py:build", checkpoint, examples, tmp_path)
        assert draft.problem == ""
        recipe = tomllib.loads(draft.text)
        assert recipe["inputs"]["user_id"]["dtype"] == user_id
        towers = {name: tower["role"] for name, tower in recipe["towers"].items()}
        assert towers == {name: roles[name] for name in towers}
        assert ("candidate" in towers) == ("# [indexes.items]" in draft.text)
        if "candidate" in towers:
            columns = '# features = { movie_id = "movie_id", age = "age" }\n'
            assert columns in draft.text
    if history is not None:
        assert recipe["inputs"]["history"] == {"dtype": "int32", "shape": [3], "pad": 0}


def test_draft_has_one_length_for_lists_that_several_calls_take(tmp_path: Path) -> None:
    # Only the query reads the history: the candidate's call runs with any length.
    (tmp_path / "model.py").write_text(SEQUENCES)
    load_factory("model.py:write", tmp_path, arguments={"folder": tmp_path}).function(tmp_path)
    file = tmp_path / "examples.jsonl"
    rows = [{"history": [1, 2, 3][:size], "movie_id": 3, "age": 2.5} for size in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft = draft_recipe("model.py:build", "checkpoint.keras", file, tmp_path)
    assert draft.problem == ""
    recipe = tomllib.loads(draft.text)
    assert recipe["inputs"]["history"] == {"dtype": "int64", "shape": [3], "pad": 0}
    assert set(recipe["towers"]) == {"tower", "query", "candidate"}


def test_draft_names_inputs_that_only_the_ranking_reads(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    code = JAX.replace(".sum(axis=1)\n", '.sum(axis=1) * inputs["minutes"]\n')
    (tmp_path / "model.py").write_text(code)
    load_factory("model.py:write", tmp_path, arguments={"folder": tmp_path}).function(tmp_path)
    row = {"user_id": 1, "movie_id": 3, "age": 2.5, "history": [1, 2], "minutes": 0.5}
    (tmp_path / "examples.jsonl").write_text(json.dumps(row))
    draft = draft_recipe("model.py:build", "checkpoint", Path("examples.jsonl"), tmp_path)
    assert draft.problem == ""
    assert "# Only the ranking reads minutes. Those that describe the item belong" in draft.text

    # Followed as it is, the draft leaves the role to what is absent, which is said.
    (tmp_path / "items.csv").write_text("id,movie_id,age\n1,3,2.5\n2,4,3.5\n")
    corpus = "\n".join(
        line.removeprefix("# ").replace("items.parquet", "items.csv")
        for line in draft.text.splitlines()
        if line.startswith(("# [corpora", "# file", "# id", "# features"))
    )
    job = ExportJob.model_validate(tomllib.loads(draft.text + corpus))
    (note,) = prepare(job, tmp_path, ExportSettings()).warnings
    assert note.startswith("of the context by absence: 'minutes'. No store, no tower")
    stated = job.model_copy(update={"features": {"minutes": FeatureSection(role="candidate")}})
    assert prepare(stated, tmp_path, ExportSettings()).warnings == ()


def test_draft_begins_with_the_arguments_of_the_factory(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    code = JAX.replace("build():", "sized(rows, names):").replace("(50, 4)", "(rows, 4)", 1)
    (tmp_path / "model.py").write_text(code)
    load_factory("model.py:write", tmp_path, arguments={"folder": tmp_path}).function(tmp_path)
    row = {"user_id": 905, "movie_id": 3, "age": 2.5, "history": [1, 2]}
    (tmp_path / "examples.jsonl").write_text(json.dumps(row))
    # The draft finds the vocabulary by itself, too, which is stated once.
    (tmp_path / "users.txt").write_text("".join(f"{key}\n" for key in range(900, 950)))
    arguments = ("model.py:sized", "checkpoint", Path("examples.jsonl"), tmp_path)
    with pytest.raises(UsageError, match=r"needs rows, names; .* \(`init`: --set code.arguments"):
        draft_recipe(*arguments)
    statements = [
        "code.arguments.rows = 50",
        'code.arguments.names={ vocabulary = "users" }',
        'vocabularies.users.file="users.txt"',
        'vocabularies.users.dtype="int64"',
    ]
    draft = draft_recipe(*arguments, statements)
    assert draft.problem == ""
    recipe = tomllib.loads(draft.text)
    assert recipe["code"]["arguments"] == {"rows": 50, "names": {"vocabulary": "users"}}
    assert recipe["vocabularies"] == {"users": {"file": "users.txt", "dtype": "int64"}}
    ids = {"kind": "vocabulary", "vocabulary": "users"}
    assert recipe["features"]["user_id"]["ids"] == ids
    for statement, problem in (
        ("code.arguments.rows=fifty", "texts need quotes"),
        ("code.factory='other.py:build'", "a key of code or vocabularies was expected"),
        ("towers.rank.role='ranking'", "a key of code or vocabularies was expected"),
        ("code.argument.rows=50", "did you mean"),
    ):
        with pytest.raises(UsageError, match=f"--set.*{problem}"):
            draft_recipe(*arguments, [statement])


ATTRIBUTES = """
import keras
import numpy as np


class Towers(keras.Model):
    def __init__(self):
        super().__init__()
        self.item_tower = self.tower()
        self.user_tower = self.tower()
        self.top = self.tower()

    def tower(self):
        return keras.Sequential([keras.layers.Embedding(20, 4), keras.layers.Dense(4)])

    def call(self, inputs):
        user = self.user_tower(inputs["user_id"])
        product = user * self.item_tower(inputs["movie_id"]) * self.top(inputs["user_id"] + 1)
        return keras.ops.sum(product, axis=-1)


def write(folder):
    model = Towers()
    model({"user_id": np.array([1]), "movie_id": np.array([1])})
    model.save_weights(folder / "checkpoint.weights.h5")
"""
TASK = """
import tensorflow as tf
import tensorflow_recommenders as tfrs


class Towers(tfrs.Model):
    def __init__(self):
        super().__init__()
        self.user_tower = tf.keras.Sequential([tf.keras.layers.Embedding(20, 4)])
        self.item_tower = tf.keras.Sequential([tf.keras.layers.Embedding(20, 4)])
        movies = tf.data.Dataset.range(20).batch(4).map(self.item_tower)
        metrics = tfrs.metrics.FactorizedTopK(candidates=movies)
        self.task = tfrs.tasks.Retrieval(metrics=metrics)

    def compute_loss(self, features, training=False):
        user = self.user_tower(features["user_id"])
        return self.task(user, self.item_tower(features["movie_id"]))


def write(folder):
    model = Towers()
    model.user_tower(tf.constant([1]))
    model.save_weights(str(folder / "checkpoint"))
"""


@pytest.mark.parametrize(
    ("code", "checkpoint", "scores"),
    [
        pytest.param(*(ATTRIBUTES, "checkpoint.weights.h5", ["tower"]), marks=pytest.mark.nightly),
        (TASK, "checkpoint", []),
    ],
    ids=["keras", "tfrs"],
)
def test_draft_has_the_attributes_that_a_call_runs_as_towers(
    code: str, checkpoint: str, scores: list[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(code)
    load_factory("model.py:write", tmp_path, arguments={"folder": tmp_path}).function(tmp_path)
    (tmp_path / "examples.jsonl").write_text('{"user_id": 1, "movie_id": 2}\n')
    draft = draft_recipe("model.py:Towers", checkpoint, Path("examples.jsonl"), tmp_path)
    assert draft.problem == ""
    towers = tomllib.loads(draft.text)["towers"]
    # What takes computed values is no tower.
    assert set(towers) == {*scores, "user_tower", "item_tower"}
    query = {"role": "query", "call": "user_tower", "arguments": ["user_id"]}
    candidate = {"role": "candidate", "call": "item_tower", "arguments": ["movie_id"]}
    assert towers["user_tower"] == query
    assert towers["item_tower"] == candidate
    assert '# features = { movie_id = "movie_id" }\n' in draft.text


ONE_ARRAY = """
import numpy as np
import {keras} as keras


class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.top = keras.layers.Dense(1)

    def call(self, numbers):
        return self.top(numbers{taken})


def write(folder):
    model = Ranker()
    model(np.ones((1, 2), np.float32))
    model.save_weights(folder / "{checkpoint}")
"""


@pytest.mark.parametrize("taken", ["", " * 2.0", "[:, :2]"], ids=["layer", "product", "slice"])
@pytest.mark.parametrize(
    ("keras", "checkpoint"), [("keras", "checkpoint.weights.h5"), ("tf_keras", "checkpoint")]
)
def test_call_that_takes_one_array_is_given_it(
    keras: str, checkpoint: str, taken: str, tmp_path: Path
) -> None:
    code = ONE_ARRAY.format(keras=keras, checkpoint=checkpoint, taken=taken)
    (tmp_path / "model.py").write_text(code)
    load_factory("model.py:write", tmp_path, arguments={"folder": tmp_path}).function(tmp_path)
    (tmp_path / "examples.jsonl").write_text('{"numbers": [1.5, 2.5]}\n')
    draft = draft_recipe("model.py:Ranker", checkpoint, Path("examples.jsonl"), tmp_path)
    assert draft.problem == ""
    recipe = tomllib.loads(draft.text)
    assert recipe["towers"]["tower"].pop("arguments") == ["numbers"]
    with pytest.raises(NotConvertible, match=r'write arguments = \["numbers"\] in its tower'):
        prepare(ExportJob.model_validate(recipe), tmp_path, ExportSettings())
