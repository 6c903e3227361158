"""Inputs of two towers for viewers and movies, and requests to a service of them: shared by the
examples in Flax and in Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import requests, trained
from examples.columns import Column, Columns, Ints, Ragged
from examples.watching import Watching

HISTORY = 5
"""Length of the models' histories: the movies that a viewer watched last."""
WIDTHS = {"tiny": (4, 8), "small": (32, 64), "article": (64, 256)}
"""Widths of the vectors and of the hidden layers, by scale."""
RECALL_DEPTH = 100
"""Number of nearest movies among which the watched movie must be."""
EPOCHS = {"tiny": 1, "small": 3, "article": 1}
BATCH = {"tiny": 200, "small": 500, "article": 4_000}

Call = Callable[[str, Columns], NDArray[Any]]
"""A function from the name of a tower and its inputs to the trained model's vectors, [n, dim]."""


def write(
    out: Path, source: Path, sizes: Any, watching: Watching, call: Call, scale: trained.Scale
) -> None:
    """Writes all files of an export but the checkpoint, and prints how good the model is.

    Args:
      out: The folder; see `trained.write_files`.
      source: The folder of the example; see `trained.write_files`.
      sizes: The sizes of the model.
      watching: The data that the model was trained on.
      call: Runs the model's towers.
      scale: The scale of the training.
    """
    vectors = call("candidate", movie_inputs(watching, np.arange(watching.movies)))
    held_out = with_history(watching, watching.held_out)
    scores = call("query", inputs(watching, held_out)) @ vectors.T
    watched_scores = np.take_along_axis(scores, watching.watched(held_out)[:, np.newaxis], 1)
    # The rank of a watched movie is the number of movies with a better score.
    watched_ranks = (scores > watched_scores).sum(1)
    recall = np.mean(watched_ranks < RECALL_DEPTH)
    print(f"recall@{RECALL_DEPTH} of what was watched, held out: {recall:.3f}")

    reference = reference_requests(call, watching, vectors, requests.COUNT[scale])
    trained.write_files(out, source, sizes, reference)
    watching.write_catalogue(out)


def with_history(watching: Watching, interactions: Ints) -> Ints:
    """Returns the interactions with a whole history: the models have no padding."""
    history = watching.contexts(interactions)["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    return interactions[np.diff(history.offsets) == HISTORY]


def inputs(watching: Watching, interactions: Ints) -> dict[str, Column]:
    """Returns the inputs of both towers: contexts, and the movies that were watched in them."""
    contexts = watching.contexts(interactions)
    history = contexts["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    movies = movie_inputs(watching, watching.watched(interactions))
    # All histories are equally long, so that they are one array.
    return {**contexts, "history": history.values.reshape(-1, HISTORY), **movies}


def movie_inputs(watching: Watching, rows: Ints) -> dict[str, Column]:
    """Returns the inputs of the candidate tower."""
    features = watching.movie_features(rows)
    return {"movie_id": features["movie_id"], "year": features["year"]}


def arrays(columns: Columns) -> dict[str, NDArray[Any]]:
    """Returns columns with the dtypes that JAX has by default: float32 and int32."""
    arrays = {}
    for name, column in columns.items():
        array = np.asarray(column)
        dtype = np.float32 if array.dtype.kind == "f" else np.int32
        arrays[name] = array.astype(dtype)
    return arrays


def reference_requests(
    call: Call, watching: Watching, vectors: NDArray[Any], count: int
) -> trained.ReferenceRequests:
    """Returns retrievals and embeddings in turn, and the model's outputs by exact search."""
    interactions = watching.draw(with_history(watching, watching.interactions), count)
    columns = inputs(watching, interactions)
    queries = call("query", columns)
    named = watching.ids(columns)
    contexts = {name: named[name] for name in ("user_id", "history", "hour")}
    movies = {name: named[name] for name in ("movie_id", "year")}
    watched = watching.watched(interactions)
    bodies, expected = requests.retrievals(contexts, movies, queries, vectors, watched)
    return trained.ReferenceRequests(bodies, expected, named)
