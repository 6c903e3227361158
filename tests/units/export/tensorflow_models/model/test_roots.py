"""How variables of a recipe's model are stored, and what its factory returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.model.roots import build_root, find_variables
from tests.units.export.checkpoint import single_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import IDS, recipe

CODE = """
import keras
import tensorflow as tf


def build():
    return tf.Module(name="built")


def function():
    return lambda inputs: inputs["item"]


def layer():
    return keras.layers.Dense(1)
"""


def job_of(factory: str = "build", **checkpoint: Any) -> ExportJob:
    sections = {"checkpoint": {"path": "ckpt", **checkpoint}}
    return recipe(f"model.py:{factory}", {"item": IDS}, {"tower": {"role": "query"}}, sections)


def by_objects(folder: Path) -> Checkpoint:
    model = tf.Module()
    model.kernel = tf.Variable(tf.zeros([2]))
    return open_checkpoint(Path(tf.train.Checkpoint(model).write(str(folder / "objects"))))


def by_names(folder: Path, *names: str) -> Checkpoint:
    write_bundle(folder / "names", dict.fromkeys(names, single_tables.TABLE))
    return open_checkpoint(folder / "names")


def test_variables_are_found_as_they_were_saved_unless_the_recipe_says_how(tmp_path: Path) -> None:
    objects = by_objects(tmp_path)
    names = by_names(tmp_path, "kernel")
    orbax = open_checkpoint(single_tables.orbax(tmp_path / "orbax"))
    results = [
        find_variables(job_of(), objects),
        find_variables(job_of(), names),
        find_variables(job_of(), orbax),
        find_variables(job_of(by="names"), objects),
        find_variables(job_of(by="objects"), names),
    ]
    assert [job.checkpoint.by for job, _ in results] == [
        "objects",
        "names",
        "objects",
        "names",
        "objects",
    ]
    assert [opened for _, opened in results] == [objects, names, orbax, objects, names]


def test_averages_of_names_are_those_of_their_suffix(tmp_path: Path) -> None:
    checkpoint = by_names(tmp_path, "kernel", "kernel/ExponentialMovingAverage")
    _, averaged = find_variables(job_of(averages=True), checkpoint)
    assert averaged.storage.averages == {}
    assert (averaged.prefix, averaged.name) == (checkpoint.prefix, checkpoint.name)
    assert averaged.entries == checkpoint.entries


def test_averages_of_an_optimizer_are_read_in_the_places_of_their_variables(tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, use_bias=False)])
    model.compile(tf.keras.optimizers.SGD(use_ema=True), loss="mse")
    model.fit(tf.ones([2, 3]), tf.ones([2, 2]), verbose=0)
    prefix = Path(tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt")))
    _, averaged = find_variables(job_of(averages=True), open_checkpoint(prefix))
    (variable_key,) = averaged.storage.averages
    assert variable_key == "model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert averaged.storage.averages[variable_key] != variable_key


def test_averages_that_are_not_there_are_rejected(tmp_path: Path) -> None:
    names = by_names(tmp_path, "kernel", "kernel/ExponentialMovingAverage/other")
    objects = by_objects(tmp_path)
    reasons = {
        "none of its variables is called .../ExponentialMovingAverage": names,
        "no optimizer in it keeps some": objects,
    }
    for reason, checkpoint in reasons.items():
        with pytest.raises(CheckpointError) as rejected:
            find_variables(job_of(averages=True), checkpoint)
        assert str(rejected.value) == (
            f"checkpoint {checkpoint.prefix} has no moving averages ({reason}), which "
            "checkpoint.averages requests; leave it out"
        )


def test_root_is_what_the_factory_returns_or_a_graph_by_names(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    assert build_root(job_of(by="objects"), tmp_path).name == "built"
    graph = build_root(job_of("function", by="names", averages=True), tmp_path)
    assert isinstance(graph, NamedGraph)
    assert graph.averages is True
    assert build_root(job_of("function", by="names"), tmp_path).averages is False


def test_names_that_keras_gives_are_those_of_the_first_model_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE)
    names = [build_root(job_of("layer", by="objects"), tmp_path).name for _ in range(2)]
    assert names == ["dense", "dense"]
