"""Outputs of a trained model, and the requests for which a service must return the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import requests, trained
from examples.columns import Columns, sent, size, take
from examples.replay import SCORE

CANDIDATES = 5
"""The number of candidates of a ranking."""


@dataclass(frozen=True)
class Recorded:
    """Requests, and the outputs of the trained model for them.

    Attributes:
      bodies: The requests; `call` is the name of the call.
      expected: The outputs by name, as in `examples.trained.ReferenceRequests`.
    """

    bodies: list[requests.Body]
    expected: requests.Outputs

    def __add__(self, further: Recorded) -> Recorded:
        """Returns the requests and outputs of both."""
        return Recorded([*self.bodies, *further.bodies], {**self.expected, **further.expected})

    def write(self, folder: Path) -> None:
        """Writes both to the folder of a run."""
        lines = "".join(json.dumps(body) + "\n" for body in self.bodies)
        (folder / trained.REQUESTS_FILE).write_text(lines, encoding="utf-8")
        np.savez(folder / trained.EXPECTED_FILE, **self.expected)  # type: ignore[arg-type]


def rankings(
    contexts: Columns,
    candidates: Columns,
    call: Callable[[Columns], Any],
    outputs: tuple[str, ...] = (SCORE,),
) -> Recorded:
    """Records what a model returns for each context and its candidates.

    Args:
      contexts: The features of n contexts.
      candidates: The features of CANDIDATES candidates for each context, one context after the
        other.
      call: A function that takes each candidate with its context, and returns the outputs by name,
        or one array.
      outputs: The names of the outputs of the tower; the first is the score.
    """
    returned = call(requests.pairs(contexts, candidates))
    if not isinstance(returned, Mapping):
        returned = {outputs[0]: returned}
    options: dict[str, list[str]] = {}
    if len(outputs) > 1:
        options = {"heads": list(outputs)}
    expected = {name: flat(returned[name]) for name in outputs}
    expected.setdefault(SCORE, expected[outputs[0]])
    return Recorded(requests.rankings(contexts, candidates, [options]), expected)


def embeddings(tower: str, features: Columns, vectors: Any) -> Recorded:
    """Records the vectors that a model returns for n examples.

    Args:
      tower: The name of the tower in the bundle.
      features: The inputs of the tower, n of each.
      vectors: [n, ...] The vectors; a service returns the numbers of an example in one list.
    """
    bodies: list[requests.Body] = [
        {"call": "embed", "tower": tower, "features": sent(features, position)}
        for position in range(size(features))
    ]
    flattened = np.asarray(vectors, np.float32).reshape(len(bodies), -1)
    return Recorded(bodies, {tower: flattened})


def retrievals(
    contexts: Columns, queries: Any, catalog: Columns, vectors: Any, movies: NDArray[Any]
) -> Recorded:
    """Records the vectors of queries and movies, and the movies with the largest products.

    Args:
      contexts: The inputs of the query tower, n of each.
      queries: [n, dim] The model's vectors of the contexts.
      catalog: The inputs of the candidate tower for all movies 1, 2, ...
      vectors: [m, dim] The model's vectors of all movies.
      movies: [n] The ids of the movies whose vectors are requested.
    """
    rows = movies - 1
    queries = np.asarray(queries, np.float32)
    vectors = np.asarray(vectors, np.float32)
    bodies, expected = requests.retrievals(contexts, take(catalog, rows), queries, vectors, rows)
    return Recorded(bodies, expected)


def nested(columns: Columns) -> dict[str, Any]:
    """Returns columns as a call takes them: a dot in a name is a level, as in a recipe."""
    levels: dict[str, Any] = {}
    for name, column in columns.items():
        outer, _, inner = name.rpartition(".")
        level = levels
        if outer:
            level = levels.setdefault(outer, {})
        level[inner] = column
    return levels


def flat(values: Any) -> NDArray[np.float32]:
    """Returns scores [n] or [n, 1] as [n]."""
    return np.asarray(values, np.float32).reshape(-1)
