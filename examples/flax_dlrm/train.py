"""Trains DLRM in JAX on clicks in Criteo's shape, and writes the files of an export.

python -m examples.flax_dlrm.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from examples import criteo, jax_training, requests, trained
from examples.columns import Columns
from examples.flax_dlrm.model import DLRM, Sizes, example
from examples.two_towers import arrays

SIZES = {
    "tiny": Sizes(criteo.scaled(300, 30), 4, (8,), (8,)),
    "small": Sizes(criteo.scaled(100_000, 20_000), 16, (64, 32), (128, 64)),
    "article": Sizes(criteo.VOCABULARY_SIZES, 16, (512, 256, 64), (512, 256)),
}
EXAMPLES = {"tiny": 2_000, "small": 200_000, "article": 4_000_000}
BATCH = 1_000
CANDIDATES = 20
"""Number of candidates of a request."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    sizes = SIZES[scale]
    model = DLRM(sizes)
    data = criteo.Clicks(sizes.rows, [1] * len(sizes.rows), seed=3)
    state = fit(model, data, EXAMPLES[scale])
    apply = jax.jit(model.apply)

    def call(columns: Columns) -> NDArray[np.float32]:
        return np.asarray(apply(state["params"], arrays(columns)))

    held_out, labels = data.impressions(EXAMPLES[scale] // 10)
    scores = call(held_out)
    clicked = labels["click"] > 0
    print(f"held out: {scores[clicked].mean():.3f} clicked, {scores[~clicked].mean():.3f} not")

    contexts = data.contexts(requests.COUNT[scale])
    candidates = data.candidates(CANDIDATES * requests.COUNT[scale])
    pairs = requests.pairs(contexts, candidates)
    reference = trained.ReferenceRequests(
        requests.rankings(contexts, candidates), {"score": call(pairs)}, pairs
    )
    trained.write_files(out, Path(__file__).parent, sizes, reference)
    jax_training.save(out, state)


def fit(model: DLRM, data: criteo.Clicks, n: int) -> dict[str, Any]:
    """Returns trained parameters, and the optimizer's state as it would be saved with them."""

    def loss_of(parameters: Any, batch: Any) -> Any:
        probabilities = jnp.clip(model.apply(parameters, batch), 1e-6, 1 - 1e-6)
        clicks = batch["click"]
        logs = clicks * jnp.log(probabilities) + (1 - clicks) * jnp.log1p(-probabilities)
        return -jnp.mean(logs)

    features, clicks = data.impressions(n)
    parameters = jax.jit(model.init)(jax.random.key(3), example(model.sizes))
    batches = jax_training.shuffled(arrays({**features, **clicks}), BATCH)
    return jax_training.fit(parameters, optax.adam(0.003), loss_of, batches)


if __name__ == "__main__":
    trained.command_line("flax_dlrm", train)
