from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graphs.loading import load_tensorflow
from export.model_code.factories import load_factory
from runtime.towers import open_tower
from tests.units.export.movies_job import export
from tests.units.export.traced_models import MODELS

RECIPE = """
model = "normalized"
checkpoint = { path = "ckpt", object_path = "model" }
code.factory = "FOLDER/normalizations.py:build_FACTORY"
output = { root = "bundles" }
inputs.n = { dtype = "DTYPE", shape = [2] }
towers.query = { role = "query" }
"""


def numbers(seed: int) -> NDArray[np.float32]:
    """As the factories have it."""
    return np.random.default_rng(seed).normal(5 + seed, 3, (64, 2)).astype(np.float32)


@pytest.mark.filterwarnings(
    "ignore:Even though the `tf.config.experimental_run_functions_eagerly`"
)  # adapt()
@pytest.mark.parametrize(
    ("factory", "trained", "keras", "dtype"),
    [
        ("plain", 1, "2", "float32"),
        ("plain", 1, "2", "int32"),
        ("adapted", None, "3", "float32"),
    ],
)
def test_towers_normalize_by_the_checkpoints_values(
    factory: str, trained: int | None, keras: str, dtype: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    model = load_factory(f"normalizations.py:build_plain_{keras}", MODELS)()
    if trained is not None:
        model.norm.adapt(numbers(trained))
    sample = numbers(5).astype(dtype)
    expected = model({"n": tf.constant(sample)}).numpy()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    path = tmp_path / "recipe.toml"
    page = RECIPE.replace("FOLDER", str(MODELS)).replace("FACTORY", f"{factory}_{keras}")
    path.write_text(page.replace("DTYPE", dtype))
    published = export(path)
    assert isinstance(published.directory, Path)
    tower = open_tower(published.directory, published.manifest.towers["query"], "f32")
    np.testing.assert_allclose(tower.run({"n": sample})["result"], expected, rtol=1e-5, atol=1e-5)
