"""Moving averages of a program of TF1: what a bundle gives equals what a session predicts by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from rich.console import Console

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.paths import compiled_tower
from export.errors import CheckpointError
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.model.roots import open_job
from export.recipe.schema import ExportJob, read_recipe
from export.recipe.settings import ExportSettings
from runtime.litert import CompiledTower
from tests.export.exporting import export
from tests.golden import tf1_averages

v1 = tf.compat.v1
ITEMS = np.arange(tf1_averages.ROWS)
PRICES = np.linspace(-1, 1, ITEMS.size, dtype=np.float32)
RECIPE = """
model = "averaged"
checkpoint = { path = "ckpt", averages = AVERAGES }
code = { factory = "FOLDER/tf1_averages.py:build", table_threshold = 0 }
output = { root = "AVERAGES" }
towers.ranking = { role = "ranking", outputs = { score = "score" } }
features.item = { role = "candidate" }
features.price = { role = "candidate" }
[inputs]
item = { dtype = "int64" }
price = { dtype = "float32" }
"""


def train(prefix: Path) -> dict[str, NDArray[Any]]:
    """Trains, saves, and returns what is predicted by the last values and by the averages."""
    found = {}
    with tf.Graph().as_default(), v1.Session() as session:
        scores = tf1_averages.build()({"item": tf.constant(ITEMS), "price": tf.constant(PRICES)})["score"]
        averages = tf.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies([v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(scores**2))]):
            step = averages.apply()
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(step)
        v1.train.Saver().save(session, str(prefix))
        found["false"] = session.run(scores)
        session.run([variable.assign(averages.average(variable)) for variable in v1.trainable_variables()])
        found["true"] = session.run(scores)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("averages")


@pytest.fixture(scope="module")
def predicted(folder: Path) -> dict[str, NDArray[Any]]:
    return train(folder / "ckpt" / "model.ckpt")


@pytest.mark.parametrize("averages", ["false", "true"])
def test_tf1_bundle_holds_the_values_that_the_recipe_asks_for(
    folder: Path, predicted: dict[str, NDArray[Any]], averages: str
) -> None:
    assert np.abs(predicted["false"] - predicted["true"]).max() > 0.01
    recipe = folder / f"{averages}.toml"
    recipe.write_text(RECIPE.replace("FOLDER", str(Path(__file__).parent)).replace("AVERAGES", averages))
    page = export(recipe).page
    bundle = folder / averages / "averaged" / "1"
    features = open_features(bundle, page)
    tower = CompiledTower(bundle / compiled_tower("ranking", "f32"))
    sent = {"item": Column(ITEMS), "price": Column(PRICES)}
    found = features.activations(list(page.features), sent, ITEMS.size)
    given = {each.name: found[each.feature].values for each in page.towers["ranking"].inputs if each.feature}
    np.testing.assert_allclose(tower.run(given)["score"], predicted[averages], rtol=1e-5, atol=1e-5)
    features.close()
    (table,) = page.tables.values()
    assert table.source.key.endswith("/ExponentialMovingAverage") == (averages == "true")


@pytest.mark.parametrize("averages", ["false", "true"])
def test_tf1_self_contained_saved_model_holds_the_values_that_the_recipe_asks_for(
    folder: Path, predicted: dict[str, NDArray[Any]], averages: str
) -> None:
    recipe = folder / f"inline_{averages}.toml"
    told = f'output = {{ root = "inline_{averages}", tables = "inline" }}'
    text = RECIPE.replace('output = { root = "AVERAGES" }', told).replace("AVERAGES", averages)
    recipe.write_text(text.replace("FOLDER", str(Path(__file__).parent)))
    prepared = prepare_inline(read_recipe(recipe), folder, ExportSettings())
    published = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    serve = tf.saved_model.load(str(published.directory)).signatures["ranking"]
    found = serve(item=tf.constant(ITEMS), price=tf.constant(PRICES))["score"].numpy()
    np.testing.assert_allclose(found, predicted[averages], rtol=1e-5, atol=1e-5)


def job_of(path: str) -> ExportJob:
    told = {"model": "m", "checkpoint": {"path": path, "averages": True}, "code": {"factory": "m.py:build"}}
    towers = {"t": {"role": "query"}}
    return ExportJob.model_validate(told | {"inputs": {}, "towers": towers, "output": {"root": "b"}})


def test_averages_of_a_checkpoint_without_any_are_refused_with_the_cure(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("kernel", [2])
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "names" / "model.ckpt"))
    tf.train.Checkpoint(kernel=tf.Variable([1.0])).save(str(tmp_path / "objects" / "model"))
    with pytest.raises(CheckpointError, match=r"has no moving averages.*leave it out"):
        open_job(job_of("names"), tmp_path)
    with pytest.raises(CheckpointError, match=r"no optimizer in it keeps some.*leave it out"):
        open_job(job_of("objects"), tmp_path)
