"""Trains DLRM on clicks in Criteo's shape and writes what an export needs: python -m examples.dlrm.train [--out DIR]"""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from examples import criteo, requests, trained, training
from examples.dlrm.model import DLRM, Sizes

SIZES = {
    "tiny": Sizes(criteo.scaled(2_000, 50), 4, (8,), (16,)),
    "small": Sizes(criteo.scaled(1_250_000, 20_000), 16, (64, 32), (128, 64)),
    "article": Sizes(criteo.VOCABULARY_SIZES, 16, (512, 256, 64), (512, 256)),
}
EXAMPLES = {"tiny": 4_000, "small": 200_000, "article": 4_000_000}
BATCH = 1_000
CANDIDATES = 20


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(7)
    sizes, n = SIZES[scale], EXAMPLES[scale]
    optimizer = training.adagrad()
    model = DLRM(sizes, optimizer)
    data = criteo.Clicks(sizes.rows, [1] * len(sizes.rows), seed=3)
    features, clicks = data.impressions(n)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()
    training.fit(
        model,
        optimizer,
        lambda columns, labels: cross_entropy(labels["click"], model(columns)["click"]),
        training.shuffled(features, clicks, BATCH),
    )
    held_out, clicked = data.impressions(n // 10)
    reached = requests.answers(model, held_out, ["click"])["click"]
    print(f"AUC of {n // 10} held out: {training.area_under_curve(clicked['click'], reached):.3f}")

    contexts, shown = data.contexts(requests.COUNT[scale]), data.shown(CANDIDATES * requests.COUNT[scale])
    expected = requests.answers(model, requests.pairs(contexts, shown), ["click"])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    trained.write(
        out,
        Path(__file__).parent,
        sizes,
        checkpoint,
        requests.rankings(contexts, shown),
        {"score": expected["click"]},
    )


if __name__ == "__main__":
    trained.command_line("dlrm", train)
