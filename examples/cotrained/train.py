"""Trains retrieval and ranking together, and writes the files of an export.

python -m examples.cotrained.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from examples import requests, trained, training
from examples.cotrained.model import CoTrained, Sizes
from examples.watching import Watching

HISTORY = 10
"""Maximum length of a history."""
WIDTHS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "tiny": (4, 3, (8,)),
    "small": (64, 16, (64, 32)),
    "article": (128, 32, (256, 128)),
}
"""Values of retrieval_dim, ranking_dim and hidden, by scale."""
INTERACTIONS = {"tiny": 300, "small": 60_000, "article": 2_000_000}
BATCH = {"tiny": 1_200, "small": 1_000, "article": 1_000}
NEGATIVES = 3
"""Number of further movies beside each watched one in the training."""
CANDIDATES = 20
"""Number of candidates of a request."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(23)
    watching = Watching(scale, HISTORY)
    retrieval_dim, ranking_dim, hidden = WIDTHS[scale]
    sizes = Sizes(
        watching.users, watching.movies, watching.genres, retrieval_dim, ranking_dim, hidden
    )
    optimizers = training.optimizers()
    model = CoTrained(sizes, optimizers.tables)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()

    def loss_of(columns: Any, labels: Any) -> Any:
        outputs = model(columns)
        # Both stages learn from the same pairs, each with its own loss.
        products = tf.reduce_sum(outputs["query"] * outputs["candidate"], 1)
        retrieval_loss = cross_entropy(labels["watched"], tf.sigmoid(products - 1.0))
        ranking_loss = cross_entropy(labels["watched"], outputs["watched"])
        return ranking_loss + retrieval_loss

    interactions = watching.draw(watching.trained, INTERACTIONS[scale])
    features, labels = watching.pairs(interactions, NEGATIVES)
    inputs = {name: column for name, column in features.items() if name != "year"}
    training.fit(model, optimizers, loss_of, training.shuffled(inputs, labels, BATCH[scale]))
    held_out, watched = watching.pairs(watching.held_out, NEGATIVES)
    predicted = requests.model_outputs(model, held_out, ["watched"])["watched"]
    print(
        "AUC of what was watched, held out: "
        f"{training.area_under_curve(watched['watched'], predicted):.3f}"
    )

    contexts = watching.contexts(watching.draw(watching.interactions, requests.COUNT[scale]))
    movies = watching.movie_features(watching.draw_movies(CANDIDATES * requests.COUNT[scale]))
    movies.pop("year")
    pairs = requests.pairs(contexts, movies)
    expected = {"score": requests.model_outputs(model, pairs, ["watched"])["watched"]}
    reference = trained.ReferenceRequests(
        requests.rankings(watching.ids(contexts), watching.ids(movies)),
        expected,
        watching.ids(pairs),
    )
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)
    watching.write_catalogue(out)


if __name__ == "__main__":
    trained.command_line("cotrained", train)
