"""Models of both generations of Keras, exported from the HDF5 files that their training saves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, Manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.ordered_variables import find_ordered_variables
from export.tensorflow_models.model.saved_models import trained_model
from runtime.towers import open_tower
from tests.units.export.job_runs import publish
from tests.units.export.tensorflow_models.planning import assert_says
from tests.units.export.traced_models import MODELS

tf = load_tensorflow()  # as the exporter needs it, before a model imports it

import tf_keras  # noqa: E402

from tests.models import either_keras, saved_in_order  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
"""What Keras warns of when it saves a whole model in HDF5."""
EXAMPLES = 5
IDS = {"user": np.arange(EXAMPLES, dtype=np.int32), "item": np.arange(7, 12, dtype=np.int32)}
FORMS = {
    "weights": ("build_2", "weights.h5"),
    "whole model of Keras 3": ("build_3", "model.h5"),
    "weights by attributes": ("build_subclassed", "model.weights.h5"),
    "weights of an attribute": ("build_parts", "weights.h5"),
}
"""The factory, and the name of a file, from which Keras takes the format."""


def trained(factory: str) -> Any:
    """Returns what a factory returns, its model after a call; no two weights have one value."""
    root = getattr(saved_in_order, factory)()
    model = getattr(root, "trained", root)
    model(IDS)
    random = np.random.default_rng(4)
    model.set_weights([random.random(value.shape, np.float32) for value in model.get_weights()])
    return root


def saved(model: Any, file: Path) -> Path:
    model = getattr(model, "trained", model)
    if "weights" in file.name:
        model.save_weights(file)
    else:
        model.save(file)
    return file


def published(factory: str, file: Path, output: Path) -> tuple[Path, Manifest]:
    """Returns the bundle of a model."""
    call = {"call": "served"} if factory == "build_parts" else {}
    page = {
        "model": "tested",
        "checkpoint": {"path": str(file)},
        "code": {"factory": f"saved_in_order.py:{factory}", "table_threshold": 1},
        "output": {"root": str(output)},
        "inputs": {"user": {"dtype": "int32"}, "item": {"dtype": "int32"}},
        "towers": {"query": {"role": "query", **call}},
    }
    return output / "tested" / "1", publish(page, MODELS).manifest


@pytest.mark.parametrize(("factory", "name"), FORMS.values(), ids=FORMS)
def test_model_gives_what_the_trained_one_gave_from_every_form(
    factory: str, name: str, tmp_path: Path
) -> None:
    root = trained(factory)
    model = getattr(root, "trained", root)
    bundle, manifest = published(factory, saved(root, tmp_path / name), tmp_path)
    assert {table.rows for table in manifest.tables.values()} == {saved_in_order.ROWS}
    arguments = {}
    for tensor in manifest.towers["query"].inputs:
        feature = manifest.features[tensor.sources[0]]
        assert isinstance(feature, EmbeddedFeature)
        name = feature.table
        layer = getattr(model, name, None) or model.get_layer(name)
        arguments[tensor.name] = layer.get_weights()[0][IDS[tensor.sources[0]]]
    opened = open_tower(bundle, manifest.towers["query"], "f32")
    (result,) = opened.run(arguments).values()
    expected = np.asarray(getattr(root, "served", model)(IDS))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def pair(
    library: Any = tf_keras,
    names: tuple[str | None, ...] = ("left", "right"),
    sizes: tuple[int, ...] = (3, 3),
    **options: Any,
) -> Any:
    """Returns a model with a layer of each name, side by side."""
    numbers = library.Input((2,))
    layers = [
        library.layers.Dense(size, name=name, **options)
        for name, size in zip(names, sizes, strict=True)
    ]
    return library.Model(
        numbers, library.layers.Concatenate()([layer(numbers) for layer in layers])
    )


def nested(trainable: bool = True) -> Any:
    """Returns a model with another one inside, whose weights may not be trained."""
    layers = [tf_keras.layers.BatchNormalization(name=name) for name in ("first", "second")]
    inner = tf_keras.Sequential(layers, name="inner")
    inner.trainable = trainable
    numbers = tf_keras.Input((4,))
    return tf_keras.Model(numbers, inner(numbers))


def tied(shared: bool = True) -> Any:
    """Returns a model, two layers of which have one layer inside, or one each."""
    layers = [tf_keras.layers.Dense(2, use_bias=False, name="inside") for _ in "12"]
    outer = [
        tf_keras.layers.TimeDistributed(layers[0 if shared else number], name=f"outer{number}")
        for number in range(2)
    ]
    numbers = tf_keras.Input((3, 2))
    return tf_keras.Model(numbers, outer[1](outer[0](numbers)))


NOT_THE_SAVED = "not the one that was saved"
Make = Callable[[], Any]
OTHERS: dict[str, tuple[Make, Make, tuple[str, ...]]] = {
    "layers in another order": (
        pair,
        lambda: pair(names=("right", "left")),
        ("'left' in the file", "'right' (Dense) in the model", 'name="left"'),
    ),
    "fewer weights": (
        pair,
        lambda: pair(use_bias=False),
        ("'left' (Dense)", "2 weights in the file", "left/bias", NOT_THE_SAVED),
    ),
    "weights in another order": (
        lambda: nested(trainable=False),
        nested,
        ("'inner' (Sequential)", "first/moving_mean", "second/gamma", "`trainable`"),
    ),
    "layers that were not called": (
        lambda: trained("build_subclassed"),
        saved_in_order.build_subclassed,
        ("(Embedding)", "call the model once in the factory"),
    ),
    "Keras 2": (
        pair,
        lambda: pair(keras),
        (f"Keras {tf_keras.__version__}", "TF_USE_LEGACY_KERAS=1", "tf_keras"),
    ),
    "variable that was not shared": (
        lambda: tied(shared=False),
        tied,
        ("outer0/outer0/kernel:0", "outer1/outer1/kernel:0", "one variable of the model"),
    ),
}


@pytest.mark.parametrize(("save", "build", "words"), OTHERS.values(), ids=OTHERS)
def test_file_fits_its_model_and_is_rejected_for_another_with_the_difference(
    save: Make, build: Make, words: tuple[str, ...], tmp_path: Path
) -> None:
    model = save()
    checkpoint = open_checkpoint(saved(model, tmp_path / "weights.h5"))
    locations = find_ordered_variables(model, checkpoint)
    assert {id(variable) for variable, _ in locations} == set(map(id, model.weights))
    with pytest.raises(CheckpointError) as problem:
        assert trained_model(build(), checkpoint, "").locations
    assert_says(str(problem.value), *words)


@pytest.mark.nightly
def test_program_takes_the_keras_that_wrote_the_checkpoint(tmp_path: Path) -> None:
    build: Any = either_keras.build_3
    prefix = tf.train.Checkpoint(model=build()).write(str(tmp_path / "ckpt"))
    shutil.copy(MODELS / "either_keras.py", tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""
model = "either"
checkpoint = {{ path = "{prefix}", object_path = "model" }}
code = {{ factory = "either_keras.py:build_default", table_threshold = 0 }}
output.root = "bundles"
inputs.item.dtype = "int64"
towers.query.role = "query"
"""
    )
    done = subprocess.run(
        [Path(sys.executable).parent / "rowcast-export", "run", recipe],
        # As a training program in JAX leaves the environment.
        env={**os.environ, "TF_USE_LEGACY_KERAS": "", "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
