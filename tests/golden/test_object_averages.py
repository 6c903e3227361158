"""Moving averages that Keras' optimizers keep: what is exported equals what the averaged model predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras_2
from numpy.typing import NDArray
from rich.console import Console

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.paths import compiled_tower
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.model.roots import open_job
from export.recipe.schema import ExportJob, read_recipe
from export.recipe.settings import ExportSettings
from runtime.litert import CompiledTower
from runtime.object_store import RemotePath
from tests.export.exporting import export
from tests.golden import averaged_models
from tests.stores import uploaded

KINDS = {"keras 2": "build", "keras 3": "build_keras_3", "slots": "build"}
ITEMS = np.arange(averaged_models.ROWS)
PRICES = np.linspace(-1, 1, ITEMS.size, dtype=np.float32)
RECIPE = """
model = "averaged"
checkpoint = { path = "PATH", object_path = "model", averages = AVERAGES }
code = { factory = "CODE/averaged_models.py:BUILD", table_threshold = THRESHOLD }
output = { root = "out", tables = "TABLES" }
towers.ranking = { role = "ranking" }
features.item = { role = "candidate" }
features.price = { role = "candidate" }
[inputs]
item = { dtype = "int64" }
price = { dtype = "float32" }
"""


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bool, NDArray[Any]]]:
    """Trains and saves; returns the prefix, and what is predicted by the last values and by the averages."""
    prefix = tmp_path_factory.mktemp("averages") / "ckpt" / "model"
    model, optimizer = averaged_models.model_of(kind), averaged_models.optimizer_of(kind)
    averaged_models.train(model, optimizer)
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(prefix))
    given = {"item": tf.constant(ITEMS), "price": tf.constant(PRICES)}
    last = model(given).numpy()
    optimizer.finalize_variable_values(model.trainable_variables)
    return prefix, {False: last, True: model(given).numpy()}


def recipe(
    folder: Path, kind: str, path: object, averages: bool = True, threshold: int = 0, tables: str = "copy"
) -> Path:
    told = {"PATH": path, "AVERAGES": str(averages).lower(), "CODE": Path(__file__).parent, "BUILD": KINDS[kind]}
    text = RECIPE
    for name, value in (told | {"THRESHOLD": threshold, "TABLES": tables}).items():
        text = text.replace(name, str(value))
    file = folder / "recipe.toml"
    file.write_text(text)
    return file


def answers(bundle: Path, page: Any) -> NDArray[Any]:
    features = open_features(bundle, page)
    tower = CompiledTower(bundle / compiled_tower("ranking", "f32"))
    found = features.activations(list(page.features), {"item": Column(ITEMS), "price": Column(PRICES)}, ITEMS.size)
    given = {each.name: found[each.feature].values for each in page.towers["ranking"].inputs if each.feature}
    features.close()
    return np.asarray(tower.run(given)["result"])


@pytest.mark.parametrize(("averages", "threshold"), [(False, 0), (True, 0), (True, 10_000)])
def test_bundle_holds_the_averages_of_tables_and_weights_if_it_is_asked_to(
    trained: tuple[Path, dict[bool, NDArray[Any]]], kind: str, tmp_path: Path, averages: bool, threshold: int
) -> None:
    prefix, predicted = trained
    assert np.abs(predicted[False] - predicted[True]).max() > 0.01
    page = export(recipe(tmp_path, kind, prefix, averages, threshold)).page
    got = answers(tmp_path / "out/averaged/1", page)
    np.testing.assert_allclose(got, predicted[averages], rtol=1e-5, atol=1e-5)
    assert len(page.tables) == (threshold == 0)


def test_self_contained_saved_model_holds_the_averages(
    trained: tuple[Path, dict[bool, NDArray[Any]]], kind: str, tmp_path: Path
) -> None:
    prefix, predicted = trained
    file = recipe(tmp_path, kind, prefix, tables="inline")
    prepared = prepare_inline(read_recipe(file), tmp_path, ExportSettings())
    published = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    serve = tf.saved_model.load(str(published.directory)).signatures["ranking"]
    (answer,) = serve(item=tf.constant(ITEMS), price=tf.constant(PRICES)).values()
    np.testing.assert_allclose(answer.numpy(), predicted[True], rtol=1e-5, atol=1e-5)


def test_averages_in_a_store_are_read_from_there(
    trained: tuple[Path, dict[bool, NDArray[Any]]], kind: str, tmp_path: Path
) -> None:
    prefix, predicted = trained
    place = uploaded(prefix.parent, RemotePath(f"counted://averages/{kind.replace(' ', '-')}"))
    page = export(recipe(tmp_path, kind, place / "model")).page
    np.testing.assert_allclose(answers(tmp_path / "out/averaged/1", page), predicted[True], rtol=1e-5, atol=1e-5)


def test_average_is_a_slot_variable_of_its_variable_which_a_table_may_be_named_after(
    trained: tuple[Path, dict[bool, NDArray[Any]]], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(trained[0])
    (table,) = recognise(checkpoint).tables
    (average,) = (slot for slot in table.slots if slot.name in ("average", "model_variables_moving_average"))
    (named,) = (each for each in recognise(checkpoint, {"averaged": average.key}).tables if each.name == "averaged")
    last, kept = (checkpoint.read(each.key, 0, each.rows) for each in (table, named))
    assert np.abs(last - kept).max() > 0.01


def job_of(path: Path) -> ExportJob:
    told = {"model": "m", "checkpoint": {"path": str(path), "averages": True}, "code": {"factory": "m.py:build"}}
    return ExportJob.model_validate(told | {"inputs": {}, "towers": {"t": {"role": "query"}}, "output": {"root": "b"}})


def test_average_that_is_not_tied_to_one_variable_is_refused_with_the_cure(tmp_path: Path) -> None:
    class Two(keras_2.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (keras_2.layers.Dense(2, use_bias=False, name="deep") for _ in range(2))

        def call(self, given: Any) -> Any:
            return self.two(self.one(given))

    model, optimizer = Two(), keras_2.optimizers.SGD(0.1, use_ema=True)
    model(tf.zeros([1, 2]))
    optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=r"not tied to one variable.*own name"):
        open_job(job_of(tmp_path / "model"), tmp_path)


def test_variable_with_two_averages_is_refused(tmp_path: Path) -> None:
    model = averaged_models.build()
    optimizers = [keras_2.optimizers.SGD(0.1, use_ema=True) for _ in range(2)]
    for each in optimizers:
        each.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, first=optimizers[0], second=optimizers[1]).write(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=r"has two moving averages, 'first/.*second/"):
        open_job(job_of(tmp_path / "model"), tmp_path)


def test_average_of_a_variable_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    optimizer = keras_2.optimizers.SGD(0.1, use_ema=True)
    optimizer.build(averaged_models.build().trainable_variables)
    tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match="not tied to one variable"):
        open_job(job_of(tmp_path / "model"), tmp_path)
