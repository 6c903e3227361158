"""Trains HSTU in JAX on histories, and writes the files of an export.

python -m examples.hstu.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from examples import jax_training, requests, trained
from examples.columns import Column, Columns, Ints, Ragged
from examples.hstu.model import Hstu, Sizes, example
from examples.two_towers import arrays
from examples.watching import Watching

LENGTH = 10
"""Length of a history, as in recipe.toml."""
WIDTHS = {"tiny": (4, 1), "small": (32, 2), "article": (64, 4)}
"""Values of dim and blocks, by scale."""
EPOCHS = {"tiny": 1, "small": 4, "article": 1}
BATCH = {"tiny": 200, "small": 500, "article": 4_000}
NO_MOVIE = 0
"""Pads histories: no movie has this id."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    watching = Watching(scale, LENGTH)
    dim, blocks = WIDTHS[scale]
    sizes = Sizes(1 + watching.movies, dim, LENGTH, blocks)
    model = Hstu(sizes)
    state = fit(model, inputs(watching, watching.trained), scale)

    def call(name: str, columns: Columns) -> NDArray[np.float32]:
        return np.asarray(model.apply(state["params"], arrays(columns), method=name))

    vectors = call("candidate", {"movie_id": 1 + np.arange(watching.movies)})
    scores = call("query", inputs(watching, watching.held_out)) @ vectors.T
    watched_scores = np.take_along_axis(
        scores, watching.watched(watching.held_out)[:, np.newaxis], 1
    )
    # The rank of a watched movie is the number of movies with a better score.
    watched_ranks = (scores > watched_scores).sum(1)
    recall = np.mean(watched_ranks < 100)
    print(f"recall@100 of what was watched, held out: {recall:.3f}")

    trained_on = watching.interactions[np.isin(watching.interactions, watching.trained)]
    interactions = watching.draw(trained_on, requests.COUNT[scale])
    queries = call("query", inputs(watching, interactions))
    reference = reference_requests(watching, interactions, queries, vectors)
    trained.write_files(out, Path(__file__).parent, sizes, reference)
    watching.write_catalogue(out)
    jax_training.save(out, state)


def inputs(watching: Watching, interactions: Ints) -> dict[str, Column]:
    """Returns the inputs of the model: padded histories, and the movies that were watched next, as
    rows from 1 on.
    """
    history = _padded(watching.contexts(interactions)["history"], 1)
    return {**history, "movie_id": 1 + watching.watched(interactions)}


def reference_requests(
    watching: Watching, interactions: Ints, queries: NDArray[Any], vectors: NDArray[Any]
) -> trained.ReferenceRequests:
    """Returns requests with the ids of movies, and the model's outputs by exact search."""
    watched = watching.watched(interactions)
    named = watching.ids({**watching.contexts(interactions), "movie_id": watched})
    contexts = _padded(named["history"], 0)
    movies = {"movie_id": named["movie_id"]}
    bodies, expected = requests.retrievals(contexts, movies, queries, vectors, watched)
    return trained.ReferenceRequests(bodies, expected, {**contexts, **movies})


def _padded(newest_first: Column, first: int) -> dict[str, Column]:
    """Returns histories of LENGTH movies, the oldest first, and their lengths without padding.

    Args:
      newest_first: The histories, a ragged column.
      first: A number that is added to each movie; padding stays 0.
    """
    if not isinstance(newest_first, Ragged):
        raise TypeError("histories are ragged")
    lengths = np.diff(newest_first.offsets)
    positions = np.arange(LENGTH)
    padded = np.full((len(lengths), LENGTH), NO_MOVIE, np.int64)
    oldest_first = [newest_first[position][::-1] for position in range(len(lengths))]
    padded[positions < lengths[:, np.newaxis]] = first + np.concatenate(oldest_first)
    return {"history": padded, "length": lengths}


def fit(model: Hstu, columns: Columns, scale: trained.Scale) -> dict[str, Any]:
    """Returns trained parameters, and the optimizer's state as it would be saved with them."""

    def loss_of(parameters: Any, batch: Any) -> Any:
        # For every viewer, the loss separates the watched movie from all others of the batch.
        query, candidate = model.apply(parameters, batch)
        scores = query @ candidate.T
        labels = jnp.arange(len(scores))
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    parameters = jax.jit(model.init)(jax.random.key(3), example(model.sizes))
    batches = jax_training.shuffled(arrays(columns), BATCH[scale], EPOCHS[scale])
    return jax_training.fit(parameters, optax.adam(0.02), loss_of, batches)


if __name__ == "__main__":
    trained.command_line("hstu", train)
