"""Requests as clients send them, and the outputs of the original model for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, sent, size, take, tensors, values

COUNT = {"tiny": 40, "small": 1_000, "article": 1_000}
"""Number of requests of an example, by scale."""
K = 10
"""Number of neighbors of a retrieval."""
PAIRS = 4_096
"""Number of pairs of context and candidate in one call of the original model."""

Body = dict[str, Any]
Outputs = dict[str, NDArray[np.float32]]


def rankings(
    contexts: Columns, candidates: Columns, options: Sequence[Mapping[str, Any]] = ({},)
) -> list[Body]:
    """Returns a ranking request for each context.

    Args:
      contexts: The columns of n contexts.
      candidates: The columns of the candidates: equally many for each context, one context after
        the other. With the one column `candidate_ids`, requests name candidates by id.
      options: Further fields of the requests, which take turns.
    """
    n = size(contexts)
    pairs_per_context = size(candidates) // size(contexts)
    bodies = []
    for context in range(n):
        first = context * pairs_per_context
        columns = take(candidates, np.arange(first, first + pairs_per_context))
        fields: dict[str, Any] = {name: values(column) for name, column in columns.items()}
        if "candidate_ids" not in fields:
            fields = {"candidate_features": fields}
        bodies.append(
            {
                "call": "rank",
                "context": sent(contexts, context),
                **fields,
                **options[context % len(options)],
            }
        )
    return bodies


def retrievals(
    contexts: Columns,
    candidates: Columns,
    queries: NDArray[Any],
    vectors: NDArray[Any],
    rows: NDArray[Any],
) -> tuple[list[Body], Outputs]:
    """Returns retrievals and embeddings in turn, and the outputs of the original model: the scores
    of exact search, and vectors.

    Args:
      contexts: The inputs of the query tower, as a caller sends them.
      candidates: The inputs of the candidate tower: one candidate for each context.
      queries: [n, dim] The model's vectors of the contexts.
      vectors: [m, dim] The model's vectors of all candidates.
      rows: [n] The rows in `vectors` of `candidates`.
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
        "candidate": vectors[rows[3::4]],
    }
    return bodies, expected


def pairs(contexts: Columns, candidates: Columns) -> Columns:
    """Returns each candidate with its context, in the form of the original model's inputs."""
    pairs_per_context = size(candidates) // size(contexts)
    return {**take(contexts, np.repeat(np.arange(size(contexts)), pairs_per_context)), **candidates}


def model_outputs(call: Callable[[Any], Any], columns: Columns, names: Sequence[str]) -> Outputs:
    """Calls the original model; returns the named outputs of every example."""
    # In parts, since the activations of a large model for all examples may not fit into memory.
    parts: dict[str, list[Any]] = {name: [] for name in names}
    for first in range(0, size(columns), PAIRS):
        positions = np.arange(first, min(first + PAIRS, size(columns)))
        outputs = call(tensors(take(columns, positions)))
        for name in names:
            parts[name].append(outputs[name].numpy())
    return {name: np.concatenate(values).astype(np.float32) for name, values in parts.items()}
