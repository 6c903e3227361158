"""Trains two towers over one call of one layer, and writes the files of an export.

python -m examples.one_call_two_tower.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from examples import requests, trained, training
from examples.columns import Columns
from examples.one_call_two_tower.model import Sizes, TwoTower
from examples.watching import Watching

HISTORY = 10
"""Maximum length of a history."""
WIDTHS: dict[str, tuple[int, tuple[int, ...]]] = {
    "tiny": (4, (8,)),
    "small": (32, (64,)),
    "article": (64, (256, 128)),
}
"""Values of dim and hidden, by scale."""
EPOCHS = {"tiny": 1, "small": 2, "article": 1}
BATCH = {"tiny": 500, "small": 500, "article": 4_000}


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    tf.keras.utils.set_random_seed(19)
    watching = Watching(scale, HISTORY)
    dim, hidden = WIDTHS[scale]
    sizes = Sizes(watching.users, watching.movies, watching.genres, dim, hidden)
    optimizers = training.optimizers()
    model = TwoTower(sizes, optimizers.tables)
    features = inputs(watching, watching.trained)
    batches = training.shuffled(features, {}, BATCH[scale], EPOCHS[scale])
    training.fit(model, optimizers, lambda columns, _: model.compute_loss(columns), batches)
    vectors = vectors_of_movies(model, watching)
    held_out = inputs(watching, watching.held_out)
    queries = requests.model_outputs(model, held_out, ["query"])["query"]
    print(f"recall@100 of what was watched, held out: {recall(queries @ vectors.T, watching):.3f}")

    reference = reference_requests(model, watching, vectors, requests.COUNT[scale])
    trained.write(out, Path(__file__).parent, sizes, model, optimizers, reference)
    watching.write_catalogue(out)


def inputs(watching: Watching, interactions: np.ndarray) -> Columns:
    """Returns the inputs of the model: contexts, and the movies that were watched in them."""
    movies = watching.movie_features(watching.watched(interactions))
    return {
        **watching.contexts(interactions),
        "movie_id": movies["movie_id"],
        "genres": movies["genres"],
    }


def vectors_of_movies(model: TwoTower, watching: Watching) -> np.ndarray:
    """Returns the trained model's vectors of all movies, [movies, dim]."""
    # One call computes both towers. The candidate's vector does not depend on the viewer.
    rows = np.arange(watching.movies)
    columns = {**inputs(watching, np.zeros_like(rows)), **watching.movie_features(rows)}
    columns.pop("year")
    return requests.model_outputs(model, columns, ["candidate"])["candidate"]


def recall(scores: np.ndarray, watching: Watching) -> float:
    """Returns the share of held-out interactions whose movie is among the best 100."""
    # The rank of a watched movie is the number of movies with a better score.
    watched_scores = np.take_along_axis(
        scores, watching.watched(watching.held_out)[:, np.newaxis], 1
    )
    return float(np.mean((scores > watched_scores).sum(1) < 100))


def reference_requests(
    model: TwoTower, watching: Watching, vectors: np.ndarray, count: int
) -> trained.ReferenceRequests:
    """Returns retrievals and embeddings in turn, and the model's outputs by exact search."""
    interactions = watching.draw(watching.interactions, count)
    columns = inputs(watching, interactions)
    queries = requests.model_outputs(model, columns, ["query"])["query"]
    named = watching.ids(columns)
    contexts = {name: named[name] for name in ("user_id", "history", "hour")}
    movies = {name: named[name] for name in ("movie_id", "genres")}
    watched = watching.watched(interactions)
    bodies, expected = requests.retrievals(contexts, movies, queries, vectors, watched)
    return trained.ReferenceRequests(bodies, expected, named)


if __name__ == "__main__":
    trained.command_line("one_call_two_tower", train)
