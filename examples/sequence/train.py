"""Trains self-attention over histories, and writes the files of an export.

python -m examples.sequence.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from examples import requests, trained, training
from examples.sequence.model import SequenceModel, Sizes
from examples.watching import Watching

LENGTH = {"tiny": 5, "small": 20, "article": 200}
WIDTHS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "tiny": (4, 2, 1, (8,)),
    "small": (32, 2, 2, (64, 32)),
    "article": (64, 2, 2, (256, 128)),
}
"""Values of dim, heads, blocks and top, by scale."""
INTERACTIONS = {"tiny": 300, "small": 50_000, "article": 2_000_000}
BATCH = {"tiny": 600, "small": 1_000, "article": 1_000}
NEGATIVES = 3
"""Number of further movies beside each watched one in the training."""
CANDIDATES = 20
"""Number of candidates of a request."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(17)
    # Longer than the length to which the model cuts histories, so that requests show the cut.
    watching = Watching(scale, history=LENGTH[scale] * 3 // 2)
    dim, heads, blocks, top = WIDTHS[scale]
    sizes = Sizes(watching.movies, watching.genres, dim, LENGTH[scale], heads, blocks, top)
    optimizers = training.optimizers()
    model = SequenceModel(sizes, optimizers.tables)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()

    def loss_of(columns: Any, labels: Any) -> Any:
        return cross_entropy(labels["watched"], model(columns)["watched"])

    interactions = watching.draw(watching.trained, INTERACTIONS[scale])
    features, labels = watching.pairs(interactions, NEGATIVES)
    training.fit(model, optimizers, loss_of, training.shuffled(features, labels, BATCH[scale]))
    held_out, watched = watching.pairs(watching.held_out, NEGATIVES)
    predicted = requests.model_outputs(model, held_out, ["watched"])["watched"]
    print(
        "AUC of what was watched, held out: "
        f"{training.area_under_curve(watched['watched'], predicted):.3f}"
    )

    contexts = watching.contexts(watching.draw(watching.interactions, requests.COUNT[scale]))
    contexts.pop("user_id")
    movies = watching.draw_movies(CANDIDATES * requests.COUNT[scale])
    pairs = requests.pairs(contexts, watching.movie_features(movies))
    expected = {"score": requests.model_outputs(model, pairs, ["watched"])["watched"]}
    # The corpus has the features of the movies, so requests name movies by id.
    movie_ids = watching.ids({"movie_id": movies})["movie_id"]
    bodies = requests.rankings(watching.ids(contexts), {"candidate_ids": movie_ids})
    reference = trained.ReferenceRequests(bodies, expected, watching.ids(pairs))
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)
    watching.write_catalogue(out)


if __name__ == "__main__":
    trained.command_line("sequence", train)
