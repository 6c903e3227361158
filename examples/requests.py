"""Requests as clients send them, and what the original model answers to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, sent, size, take, tensors, values

COUNT = {"tiny": 40, "small": 1_000, "article": 1_000}
"""Requests of an example, by scale."""
K = 10
"""Neighbors of a retrieval."""
PAIRS = 4_096
"""Contexts with candidates that the original model is called with at a time."""

Body = dict[str, Any]
Answers = dict[str, NDArray[np.float32]]


def rankings(
    contexts: Columns, candidates: Columns, options: Sequence[Mapping[str, Any]] = ({},)
) -> list[Body]:
    """Returns a ranking request for each context.

    Args:
      contexts: n of them.
      candidates: equally many for each context, one context after the other. With the one column
        `candidate_ids` they are given by id.
      options: further fields of the requests, in turn.
    """
    n = size(contexts)
    each = size(candidates) // size(contexts)
    bodies = []
    for context in range(n):
        own = take(candidates, np.arange(context * each, (context + 1) * each))
        features = {name: values(column) for name, column in own.items()}
        given = features if "candidate_ids" in features else {"candidate_features": features}
        bodies.append(
            {
                "call": "rank",
                "context": sent(contexts, context),
                **given,
                **options[context % len(options)],
            }
        )
    return bodies


def retrievals(
    contexts: Columns,
    candidates: Columns,
    queries: NDArray[Any],
    vectors: NDArray[Any],
    own: NDArray[Any],
) -> tuple[list[Body], Answers]:
    """Returns retrievals and embeddings in turn, and what the original model returns: the scores of
    exact search, and vectors.

    Args:
      contexts: what the query tower takes, as a caller sends it.
      candidates: one for each context: what the candidate tower takes.
      queries: [n, dim] the model's vectors of the contexts.
      vectors: [m, dim] its vectors of all candidates.
      own: [n] rows in `vectors` of `candidates`.
    """
    bodies: list[Body] = []
    for position in range(len(queries)):
        if position % 2 == 0:
            bodies.append({"call": "retrieve", "context": sent(contexts, position), "k": K})
        elif position % 4 == 1:
            features = sent(contexts, position)
            bodies.append({"call": "embed", "tower": "query", "features": features})
        else:
            features = sent(candidates, position)
            bodies.append({"call": "embed", "tower": "candidate", "features": features})
    scores = queries[::2].astype(np.float64) @ vectors.T.astype(np.float64)
    expected = {
        "neighbors": -np.sort(-scores, axis=1)[:, :K].astype(np.float32),
        "query": queries[1::4],
        "candidate": vectors[own[3::4]],
    }
    return bodies, expected


def pairs(contexts: Columns, candidates: Columns) -> Columns:
    """Returns each candidate with its context, as the original model takes them."""
    each = size(candidates) // size(contexts)
    return {**take(contexts, np.repeat(np.arange(size(contexts)), each)), **candidates}


def answers(call: Callable[[Any], Any], columns: Columns, names: Sequence[str]) -> Answers:
    """Calls the original model; returns the named outputs of every example."""
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for first in range(0, size(columns), PAIRS):
        positions = np.arange(first, min(first + PAIRS, size(columns)))
        found = call(tensors(take(columns, positions)))
        for name in names:
            parts[name].append(found[name].numpy())
    return {name: np.concatenate(values).astype(np.float32) for name, values in parts.items()}
