"""A functional model of Keras and its two towers are exported from each file of the model, in
whichever form the factory returns them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.keras_saving import tensorflow_variable
from export.tensorflow_models.model.roots import build_root
from export.tensorflow_models.model.saved_models import trained_model
from runtime.towers import open_tower
from tests.units.export.job_runs import publish
from tests.units.export.tensorflow_models.planning import assert_says
from tests.units.export.traced_models import MODELS

tf = load_tensorflow()  # as the exporter needs it, before a model imports it

from tests.models import retrieval_parts  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
"""What Keras warns of when it saves a whole model in HDF5."""

FILES = {
    "tf_keras": ("m.weights.h5", "m.h5", "whole.h5", "m.keras", "weights", "checkpoint"),
    "keras": ("m.weights.h5", "whole.h5", "m.keras", "checkpoint"),
}
"""The files of a model of each library."""
CASES = [(library, file) for library, files in FILES.items() for file in files]
FORMS_OF_CASES = [
    *((*case, form) for form in ("namespace", "attributes") for case in CASES),
    *(("keras", "m.weights.h5", form) for form in ("dict", "named_tuple", "functions")),
    ("tf_keras", "m.h5", "functions"),
]
"""Attributes are models, functions hide them."""


def save(model: Any, path: Path) -> Path:
    if path.name == "checkpoint":
        return Path(tf.train.Checkpoint(model).write(str(path)))
    if path.name == "weights":
        model.save_weights(str(path), save_format="tf")
    elif path.name in ("m.weights.h5", "m.h5"):
        model.save_weights(path)
    else:
        model.save(path)
    return path


def recipe(library: str, form: str, path: Path, output: Path) -> dict[str, Any]:
    return {
        "model": "tested",
        "checkpoint": {"path": str(path)},
        "code": {
            "factory": f"retrieval_parts.py:build_{form}",
            "arguments": {"library": library},
            "table_threshold": 1,
        },
        "output": {"root": str(output)},
        "inputs": {
            "user_id": {"dtype": "int32", "shape": [1]},
            "item_id": {"dtype": "int32", "shape": [1]},
        },
        "towers": {
            "query": {"role": "query", "call": "user_model", "inputs": ["user_id"]},
            "candidate": {"role": "candidate", "call": "item_model", "inputs": ["item_id"]},
        },
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Path]]:
    """The parts of each library and file, and the file of the model."""
    cases = {}
    for library, file in CASES:
        built: Any = retrieval_parts.build_named_tuple(library)  # type: ignore[no-untyped-call]
        random = np.random.default_rng(4)
        built.model.set_weights(
            [random.random(value.shape, np.float32) for value in built.model.get_weights()]
        )
        path = tmp_path_factory.mktemp("saved") / file
        cases[library, file] = built, save(built.model, path)
    built, path = cases["tf_keras", "m.h5"]
    cases["tf_keras", "two SavedModels"] = built, merged(built, path.parent)
    return cases


def merged(built: Any, folder: Path) -> Path:
    """Saves each tower by itself, and writes a checkpoint of both, as docs/reference/models.md
    shows.
    """
    loaded = {}
    for name in ("user_model", "item_model"):
        tf.saved_model.save(getattr(built, name), str(folder / name))
        loaded[name] = tf.saved_model.load(str(folder / name))
    return Path(tf.train.Checkpoint(**loaded).write(str(folder / "towers")))


@pytest.mark.parametrize(("library", "file", "form"), FORMS_OF_CASES)
def test_each_weight_of_the_model_is_found_in_each_of_its_files(
    library: str, file: str, form: str, saved: Any, tmp_path: Path
) -> None:
    built, path = saved[library, file]
    root = build_root(ExportJob.model_validate(recipe(library, form, path, tmp_path)), MODELS)
    checkpoint = open_checkpoint(path)
    trained = trained_model(root, checkpoint, "")
    pairs = [(trained.root, built.model)]
    if form != "functions":  # which hide the towers
        pairs += [(getattr(root, name), getattr(built, name)) for name in built._fields[1:]]
    for model, original in pairs:
        keys = trained.find_weights(map(tensorflow_variable, model.weights))
        for (_, key), value in zip(keys, original.get_weights(), strict=True):
            np.testing.assert_array_equal(checkpoint.read_all(key), value)


@pytest.mark.parametrize(
    ("library", "file", "form"),
    [
        ("tf_keras", "m.weights.h5", "namespace"),
        ("keras", "checkpoint", "dict"),
        ("tf_keras", "two SavedModels", "module"),
    ],
)
def test_towers_give_what_the_trained_ones_gave(
    library: str, file: str, form: str, saved: Any, tmp_path: Path
) -> None:
    built, path = saved[library, file]
    manifest = publish(recipe(library, form, path, tmp_path), MODELS).manifest
    rows = np.arange(5, 10)
    for name, model in (("query", built.user_model), ("candidate", built.item_model)):
        tower = manifest.towers[name]
        (tensor,) = tower.inputs
        feature = manifest.features[tensor.sources[0]]
        assert isinstance(feature, EmbeddedFeature)
        (table,) = [layer for layer in model.layers if hasattr(layer, "embeddings")]
        opened = open_tower(tmp_path / "tested" / "1", tower, "f32")
        vectors = table.get_weights()[0][rows].reshape(-1, *tensor.shape[1:])
        (result,) = opened.run({tensor.name: vectors}).values()
        expected = np.asarray(model({tensor.sources[0]: rows[:, None]}))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_what_is_no_model_is_rejected_with_the_forms_that_are(saved: Any) -> None:
    built, path = saved["keras", "m.weights.h5"]
    with pytest.raises(CheckpointError) as problem:
        assert trained_model([*built], open_checkpoint(path), "").locations
    assert_says(str(problem.value), "returned a list", "return the keras.Model", "object or dict")
