"""Trains DLRM on clicks in Criteo's shape, and writes the files of an export.

python -m examples.dlrm.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from examples import criteo, requests, trained, training
from examples.dlrm.model import DLRM, Sizes

SIZES = {
    "tiny": Sizes(criteo.scaled(300, 30), 4, (8,), (8,)),
    "small": Sizes(criteo.scaled(1_250_000, 20_000), 16, (64, 32), (128, 64)),
    "article": Sizes(criteo.VOCABULARY_SIZES, 16, (512, 256, 64), (512, 256)),
}
EXAMPLES = {"tiny": 2_000, "small": 200_000, "article": 4_000_000}
BATCH = 1_000
CANDIDATES = 20
"""Number of candidates of a request."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(7)
    sizes = SIZES[scale]
    n = EXAMPLES[scale]
    optimizers = training.optimizers()
    model = DLRM(sizes, optimizers.tables)
    data = criteo.Clicks(sizes.rows, [1] * len(sizes.rows), seed=3)
    training.fit_clicks(model, optimizers, data, n, BATCH)
    contexts = data.contexts(requests.COUNT[scale])
    candidates = data.candidates(CANDIDATES * requests.COUNT[scale])
    pairs = requests.pairs(contexts, candidates)
    expected = {"score": requests.model_outputs(model, pairs, ["click"])["click"]}
    reference = trained.ReferenceRequests(requests.rankings(contexts, candidates), expected, pairs)
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)


if __name__ == "__main__":
    trained.command_line("dlrm", train)
