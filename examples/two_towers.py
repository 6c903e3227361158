"""What two towers of viewers and movies take, and what a service of them is asked: shared by the
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
"""How many of the movies that a viewer watched last the models take."""
WIDTHS = {"tiny": (4, 8), "small": (32, 64), "article": (64, 256)}
"""dim, hidden."""
EPOCHS = {"tiny": 1, "small": 3, "article": 1}
BATCH = {"tiny": 200, "small": 500, "article": 4_000}

Call = Callable[[str, Columns], NDArray[Any]]
"""(name of a tower, what it takes) -> [n, dim] vectors of the trained model."""


def write(
    out: Path, source: Path, sizes: Any, watching: Watching, call: Call, scale: trained.Scale
) -> None:
    """Writes all that an export reads but the checkpoint, and prints how good the model is.

    Args:
      out, source, sizes: as of `trained.write_files`.
      watching: what it was trained on.
      call: runs its towers.
      scale: how large it is.
    """
    vectors = call("candidate", of_movies(watching, np.arange(watching.movies)))
    held_out = with_history(watching, watching.held_out)
    scores = call("query", inputs(watching, held_out)) @ vectors.T
    own = np.take_along_axis(scores, watching.watched(held_out)[:, np.newaxis], 1)
    recall = np.mean((scores > own).sum(1) < 100)
    print(f"recall@100 of what was watched, held out: {recall:.3f}")

    asked = ask(call, watching, vectors, requests.COUNT[scale])
    trained.write_files(out, source, sizes, asked)
    watching.write_catalogue(out)


def with_history(watching: Watching, interactions: Ints) -> Ints:
    """Returns the interactions before which enough movies were watched."""
    history = watching.contexts(interactions)["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    return interactions[np.diff(history.offsets) == HISTORY]


def inputs(watching: Watching, interactions: Ints) -> dict[str, Column]:
    """Returns what the model takes: contexts, and the movies that were watched in them."""
    contexts = watching.contexts(interactions)
    history = contexts["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    last = history.values.reshape(-1, HISTORY)
    return {**contexts, "history": last, **of_movies(watching, watching.watched(interactions))}


def of_movies(watching: Watching, rows: Ints) -> dict[str, Column]:
    """Returns what the model takes of movies."""
    known = watching.of_movies(rows)
    return {"movie_id": known["movie_id"], "year": known["year"]}


def arrays(columns: Columns) -> dict[str, NDArray[Any]]:
    """Returns columns as the models take them: rows are int32, which JAX has by default."""
    found = {name: np.asarray(column) for name, column in columns.items()}
    return {
        name: array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        for name, array in found.items()
    }


def ask(call: Call, watching: Watching, vectors: NDArray[Any], count: int) -> trained.Asked:
    """Returns retrievals and embeddings in turn, and what the model returns by exact search."""
    interactions = watching.draw(with_history(watching, watching.interactions), count)
    columns = inputs(watching, interactions)
    queries = call("query", columns)
    named = watching.ids(columns)
    contexts = {name: named[name] for name in ("user_id", "history", "hour")}
    movies = {name: named[name] for name in ("movie_id", "year")}
    own = watching.watched(interactions)
    bodies, expected = requests.retrievals(contexts, movies, queries, vectors, own)
    return trained.Asked(bodies, expected, named)
