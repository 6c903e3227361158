from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from export.checkpoint.reader import open_checkpoint
from export.front_end.manifest_features import describe_features
from export.graphs.loading import load_tensorflow
from export.model_code.factories import load_factory
from export.tensorflow_models.model.tracing import trace_towers
from export.tensorflow_models.reference.model import TensorFlowReference
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.synthetic_examples import make_examples
from runtime.towers import open_tower
from tests.units.export.movies_job import export
from tests.units.export.traced_models import MODELS, recipe

RECIPE = """
model = "normalized"
checkpoint = { path = "ckpt", object_path = "model" }
code.factory = "FOLDER/normalizations.py:build_FACTORY"
output = { root = "bundles" }
inputs.n = { dtype = "float32", shape = [2] }
towers.query = { role = "query" }
"""


def numbers(seed: int) -> NDArray[np.float32]:
    """As the factories have it."""
    return np.random.default_rng(seed).normal(5 + seed, 3, (64, 2)).astype(np.float32)


@pytest.mark.filterwarnings(
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`"
)  # adapt()
@pytest.mark.parametrize(
    ("factory", "trained", "keras"),
    [
        ("plain", 1, "2"),
        ("adapted", 2, "3"),
        ("adapted", None, "2"),
    ],
)
def test_towers_normalize_by_the_checkpoints_values(
    factory: str, trained: int | None, keras: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    model = load_factory(f"normalizations.py:build_plain_{keras}", MODELS)()
    if trained is not None:
        model.norm.adapt(numbers(trained))
    sample = numbers(5)
    expected = model({"n": tf.constant(sample)}).numpy()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("FOLDER", str(MODELS)).replace("FACTORY", f"{factory}_{keras}"))
    published = export(path)
    assert isinstance(published.directory, Path)
    tower = open_tower(published.directory, published.manifest.towers["query"], "f32")
    np.testing.assert_allclose(tower.run({"n": sample})["result"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings(
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`"
)  # adapt()
@pytest.mark.parametrize("keras", ["2", "3"])
def test_synthetic_numbers_have_the_mean_and_variance_of_the_normalization_layer(
    keras: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    factory = f"normalizations.py:build_plain_{keras}"
    trained = np.random.default_rng(3).normal([1980, 5], [10, 0.5], (64, 2)).astype(np.float32)
    model = load_factory(factory, MODELS)()
    model.norm.adapt(trained)
    model({"n": tf.constant(trained)})
    prefix = Path(tf.train.Checkpoint(model=model).write(str(tmp_path / "model")))
    job = recipe(factory, {"n": {"dtype": "float32", "shape": [2]}}, {"query": {"role": "query"}})
    spec = trace_towers(job, MODELS).spec
    pages = describe_features(spec, job)
    examples = make_examples(spec, pages, {}, 200)
    checkpoint = open_checkpoint(prefix)
    read_rows = checkpoint_rows(checkpoint, {})
    original = TensorFlowReference(job, MODELS, checkpoint, prefix, spec)
    reference, _ = finite_results(
        Reference(job, MODELS, spec, original, read_rows, examples, FeatureReader(pages, {}, {}))
    )
    numbers_of_examples = reference.examples.columns["n"].values.reshape(200, 2)
    around_zero = examples.columns["n"].values.reshape(200, 2)
    expected = trained.mean(axis=0) + trained.std(axis=0) * around_zero
    np.testing.assert_allclose(numbers_of_examples, expected, rtol=1e-4)
