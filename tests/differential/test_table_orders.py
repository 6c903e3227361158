"""Models whose results depend on the order of a dict: what is served equals what they return,
whatever the order of the recipe's tables, or nothing is published.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import open_features
from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower
from tests.units.export.movies_job import export

load_tensorflow()

import keras  # noqa: E402 after TensorFlow

from tests.models import published_calls as models  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
]
RECIPE = """
model = "{factory}"
checkpoint = {{ path = "{file}" }}
code = {{ factory = "tests.models.published_calls:{factory}", table_threshold = 0{code} }}
output = {{ root = "bundles" }}
features.movie.role = "candidate"
towers.rating = {{ role = "ranking", precisions = [], split = false{tower} }}
inputs = {{ {inputs} }}
{rest}
"""
IN_ORDER = 'user.dtype = "int32", movie.dtype = "int32"'
REVERSED = 'movie.dtype = "int32", user.dtype = "int32"'
SIZES = {"user": models.USERS, "movie": models.MOVIES}
TABLES = f", arguments = {{ sizes = {{ user = {models.USERS}, movie = {models.MOVIES} }} }}"
ASKED = r"iterates over its inputs \(published_calls.py:\d+\), .* list them as towers.rating.inputs"
WEIGHTS = "trained.weights.h5"
VARIABLES = "trained/variables/variables"
LISTED = ', inputs = ["user", "movie"]'
DICT_ARGUMENT = ', arguments = [{ movie = "movie", user = "user" }]'
RECORDED = 'verify = { examples = "recorded.jsonl", expected.result = "score" }'
N = 20
EXAMPLES = {"user": np.full(N, 9, np.int32), "movie": np.arange(N, dtype=np.int32)}


def write_project(
    directory: Path,
    factory: str,
    file: str,
    inputs: str,
    code: str = "",
    tower: str = "",
    rest: str = "",
) -> Any:
    """Saves a model with random weights, and writes its recipe; returns the scores of examples."""
    keras.utils.set_random_seed(5)
    if factory == "joined_tables":
        model = models.joined_tables(SIZES)
    else:
        model = getattr(models, factory)()
    scores = np.ravel(model(EXAMPLES))
    if file == VARIABLES:
        model.save(directory / "trained")
    elif file == WEIGHTS:
        model.save_weights(directory / file)
    else:
        model.save(directory / file)
    recorded = [
        {"user": 9, "movie": movie, "score": float(score)} for movie, score in enumerate(scores)
    ]
    (directory / "recorded.jsonl").write_text("\n".join(map(json.dumps, recorded)))
    recipe = RECIPE.format(
        factory=factory, file=file, inputs=inputs, code=code, tower=tower, rest=rest
    )
    (directory / "recipe.toml").write_text(recipe)
    return scores


def published_scores(directory: Path) -> Any:
    """Exports a recipe; returns the scores that its bundle gives the examples."""
    published = export(directory / "recipe.toml")
    columns = {name: Column(ids) for name, ids in EXAMPLES.items()}
    folder = published.directory
    assert isinstance(folder, Path)
    with closing(open_features(folder, published.manifest)) as features:
        activations = features.activations(published.manifest.features, columns, N)
    tower = published.manifest.towers["rating"]
    values = {name: activation.values for name, activation in activations.items()}
    network = open_tower(folder, tower, "f32")
    return np.ravel(network.run(tower_inputs(tower.inputs, values, N))[tower.result])


@pytest.mark.parametrize(
    ("factory", "file", "inputs", "more"),
    [
        ("joined_inputs", "trained.keras", REVERSED, {}),
        (
            "joined_inputs_of_keras_2",
            VARIABLES,
            REVERSED,
            {"tower": ', inputs = ["movie", "user"]'},
        ),
        ("joined_inputs", WEIGHTS, REVERSED, {"tower": LISTED}),
        pytest.param(
            *("joined_inputs", WEIGHTS, REVERSED, {"tower": LISTED + DICT_ARGUMENT}),
            marks=pytest.mark.nightly,
        ),
        ("joined_inputs", WEIGHTS, IN_ORDER, {"rest": RECORDED}),
        ("joined_tables", WEIGHTS, IN_ORDER, {"rest": RECORDED, "code": TABLES}),
    ],
    ids=["keras", "saved-model", "listed", "listed-arguments", "recorded", "recorded-tables"],
)
def test_order_that_is_known_is_served(
    factory: str, file: str, inputs: str, more: dict[str, str], tmp_path: Path
) -> None:
    expected = write_project(tmp_path, factory, file, inputs, **more)
    np.testing.assert_allclose(published_scores(tmp_path), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("factory", "inputs", "more", "message"),
    [
        ("joined_inputs", IN_ORDER, {}, ASKED),
        pytest.param("joined_inputs", REVERSED, {}, ASKED, marks=pytest.mark.nightly),
        ("joined_inputs", IN_ORDER, {"tower": DICT_ARGUMENT}, ASKED),
        ("joined_tables", IN_ORDER, {"code": TABLES}, "code.arguments: the"),
    ],
)
def test_order_that_only_a_table_states_is_asked_for(
    factory: str, inputs: str, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    write_project(tmp_path, factory, WEIGHTS, inputs, **more)
    with pytest.raises(UsageError, match=message):
        export(tmp_path / "recipe.toml")
    assert not (tmp_path / "bundles" / factory / "1").exists()
