"""Random models of TensorFlow, Keras 3, Flax and JAX: what is served equals what their frameworks
give.

`python -m benchmarks.soak.random_models` tries any number of other seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from export.graphs.loading import load_tensorflow
from tests.differential.random_models.models import draw_model
from tests.differential.random_models.trials import trial

# Before pytest exempts what is imported from garbage collection, which takes a sixth of the time.
load_tensorflow()
for library in ("keras", "flax.linen", "orbax.checkpoint"):
    pytest.importorskip(library)

COUNT = 60
SEEDS = [seed for seed in range(2 * COUNT) if not draw_model(seed).known][:COUNT]
"""Of models that are not known to differ; `known` in tests/differential/random_models says how."""
REJECTED = {
    # Keras casts a variable of another dtype as a whole before its rows are taken.
    52: "reads no table",
}
"""A part of the message by which a model is rejected. All others are published: a lower share would
be a loss of what docs/reference/models.md promises.
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")  # Keras
@pytest.mark.parametrize("seed", SEEDS)
def test_random_model_as_served_gives_the_results_of_its_framework(
    seed: int, tmp_path: Path
) -> None:
    rejection = trial(seed, tmp_path).rejection
    assert REJECTED.get(seed, "") in rejection
    assert bool(rejection) == (seed in REJECTED)
