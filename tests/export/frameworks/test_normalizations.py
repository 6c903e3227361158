from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export.errors import VerificationFailed
from export.frameworks.loading import load_tensorflow
from export.model.code import load_factory
from runtime.towers import open_tower
from tests.export.movies_job import export

HERE = Path(__file__).parent
RECIPE = """
model = "normalised"
checkpoint = { path = "ckpt", object_path = "model" }
code.factory = "FOLDER/normalization_models.py:build_FACTORY"
output = { root = "bundles" }
inputs.n = { dtype = "float32", shape = [2] }
towers.query = { role = "query" }
"""


def numbers(seed: int) -> NDArray[np.float32]:
    """As the factories have it."""
    return np.random.default_rng(seed).normal(5 + seed, 3, (64, 2)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`")  # adapt()
@pytest.mark.parametrize("keras", ["2", "3"])
@pytest.mark.parametrize(
    ("factory", "trained"),
    [("plain", 1), ("adapted", 1), ("plain", None), ("adapted", 2), ("adapted", None)],
)
def test_towers_normalize_by_the_checkpoints_values_or_are_refused(
    factory: str, trained: int | None, keras: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    model = load_factory(f"normalization_models.py:build_plain_{keras}", HERE)()
    if trained is not None:
        model.norm.adapt(numbers(trained))
    sent = numbers(5)
    expected = model({"n": tf.constant(sent)}).numpy()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("FOLDER", str(HERE)).replace("FACTORY", f"{factory}_{keras}"))
    if factory == "adapted" and trained != 1:  # the code is not that of the checkpoint
        with pytest.raises(VerificationFailed, match="the original model gives"):
            export(recipe)
        return
    published = export(recipe)
    assert isinstance(published.directory, Path)
    tower = open_tower(published.directory, published.page.towers["query"], "f32")
    np.testing.assert_allclose(tower.run({"n": sent})["result"], expected, rtol=1e-5, atol=1e-5)
