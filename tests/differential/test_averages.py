"""Moving averages that optimizers keep: what is exported equals what the averaged model
predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras_2
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.manifest import Manifest
from bundle.format.paths import compiled_tower
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.front_end_choice import open_job
from export.recipe.schema import ExportJob
from runtime.litert import CompiledTower
from tests.differential.served_rankers import saved_model_scores, write_recipe
from tests.models import averaged
from tests.models.averaged import FACTORIES, ITEMS, PRICES
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

v1 = tf.compat.v1


def recipe(folder: Path, kind: str, averages: bool = True, **more: Any) -> Path:
    factory = f"{averaged.__file__}:{FACTORIES[kind]}"
    root = "" if kind == "tf1" else ', object_path = "model"'
    inputs = {"item": {"dtype": "int64"}, "price": {"dtype": "float32"}}
    checkpoint = f", averages = {str(averages).lower()}{root}"
    return write_recipe(folder, factory, inputs, (), checkpoint=checkpoint, **more)


def scores_of(bundle: Path, page: Manifest) -> NDArray[Any]:
    features = open_features(bundle, page)
    tower = CompiledTower(bundle / compiled_tower("ranking", "f32"))
    actual = features.activations(
        list(page.features), {"item": Column(ITEMS), "price": Column(PRICES)}, ITEMS.size
    )
    given = {
        each.name: actual[each.feature].values
        for each in page.towers["ranking"].inputs
        if each.feature
    }
    features.close()
    (scores,) = tower.run(given).values()
    return scores


@pytest.mark.parametrize(
    ("kind", "averages", "threshold"),
    [
        *((kind, True, 0) for kind in FACTORIES),
        ("slots", False, 0),
        ("keras 2", True, 10_000),
        ("tf1", True, 10_000),
    ],
)
def test_bundle_holds_the_averages_of_tables_and_weights_if_the_recipe_selects_them(
    kind: str, averages: bool, threshold: int, tmp_path: Path
) -> None:
    predicted = averaged.train(kind, tmp_path / "ckpt" / "model")
    assert np.abs(predicted[False] - predicted[True]).max() > 0.01
    page = export(
        recipe(tmp_path, kind, averages, code=f", table_threshold = {threshold}")
    ).manifest
    got = scores_of(tmp_path / "bundles/ranker" / str(page.version), page)
    np.testing.assert_allclose(got, predicted[averages], rtol=1e-5, atol=1e-5)
    inside = threshold > 0 and kind != "tf1"  # where partitions are always a table
    assert len(page.tables) == (not inside)


@pytest.mark.parametrize("kind", ["tf1", pytest.param("keras 3", marks=pytest.mark.nightly)])
def test_self_contained_saved_model_holds_the_averages(kind: str, tmp_path: Path) -> None:
    predicted = averaged.train(kind, tmp_path / "ckpt" / "model")
    inline = recipe(tmp_path, kind, output=', tables = "inline"', code=", table_threshold = 0")
    scores = saved_model_scores(inline, {"item": ITEMS, "price": PRICES})
    np.testing.assert_allclose(scores, predicted[True], rtol=1e-5, atol=1e-5)


def test_average_is_a_slot_variable_of_its_variable_which_a_table_may_be_named_after(
    tmp_path: Path,
) -> None:
    averaged.train("slots", tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path)
    (table,) = recognize(checkpoint).tables
    (average,) = (slot for slot in table.slots if slot.name == "average")
    (named,) = (
        table
        for table in recognize(checkpoint, {"averaged": average.key}).tables
        if table.name == "averaged"
    )
    last, kept = (checkpoint.read(each.key, 0, each.rows) for each in (table, named))
    assert np.abs(last - kept).max() > 0.01


def averaging(model: Any) -> Any:
    optimizer = keras_2.optimizers.SGD(0.1, use_ema=True)
    optimizer.build(model.trainable_variables)
    return optimizer


def names_without(prefix: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("kernel", [2])
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(prefix))


def objects_without(prefix: Path) -> None:
    tf.train.Checkpoint(kernel=tf.Variable([1.0])).save(str(prefix))


def one_name_for_two(prefix: Path) -> None:
    layers = [keras_2.layers.Dense(2, use_bias=False, name="deep") for _ in range(2)]
    inputs = keras_2.Input((2,))
    layers[1](layers[0](inputs))
    model = tf.Module()
    model.one, model.two = layers
    tf.train.Checkpoint(model=model, optimizer=averaging(model)).write(str(prefix))


def two_averages(prefix: Path) -> None:
    model = averaged.build()
    tf.train.Checkpoint(model=model, first=averaging(model), second=averaging(model)).write(
        str(prefix)
    )


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (names_without, "has no moving averages.*leave it out"),
        (objects_without, "no optimizer in it keeps some.*leave it out"),
        (one_name_for_two, "not tied to one variable.*own name"),
        (two_averages, "has two moving averages, 'first/.*second/"),
    ],
)
def test_averages_that_are_not_one_of_each_variable_are_rejected(
    write: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "ckpt" / "model")
    job = {
        "model": "m",
        "checkpoint": {"path": "ckpt", "averages": True},
        "code": {"factory": "m.py:build"},
    }
    towers = {"t": {"role": "query"}}
    job |= {"inputs": {}, "towers": towers, "output": {"root": "b"}}
    with pytest.raises(CheckpointError, match=message):
        open_job(ExportJob.model_validate(job), tmp_path)
