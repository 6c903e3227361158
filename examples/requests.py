"""Requests as clients send them, and what the original model answers to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, sent, size, take, tensors, values

COUNT = {"tiny": 40, "small": 1_000, "article": 1_000}
"""Requests of an example, by scale."""
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
