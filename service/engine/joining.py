"""Retrievals that are asked at the same time -> one: features looked up, tower and store entered once for all of them.

Joined are queries of one example each that differ in nothing but their ids and numbers: each is answered with the same
bits as alone, because neither a bag, nor a row of a compiled tower, nor a search depends on what is computed beside it.
What excludes candidates stays alone: over-fetching for one query would change what is found for another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bundle.features import Column
from service.engine.requests import Neighbors, Request, Retrieval, Retrieved

JOINED_MAX = 8
"""Queries joined; more save next to nothing, and hold the event loop up for longer."""


def likeness(request: Request) -> Hashable | None:
    """Returns what is equal for requests that can be joined; None: this one cannot."""
    if not isinstance(request, Retrieval) or request.features is None or request.exact:
        return None
    if request.exclude is not None or request.filter is not None or request.context_ids is not None:
        return None
    if request.vectors is not None or request.ids is not None:
        return None
    columns: list[tuple[str, str, bool]] = []
    for name, (values, offsets, weights) in request.features.items():
        alone = values.size == 1 if offsets is None else offsets.tolist() == [0, values.size]
        if not alone or values.ndim != 1 or weights is not None:
            return None
        columns.append((name, values.dtype.char, offsets is None))
    columns.sort()
    return request.index, request.k, request.attributes, tuple(columns)


def join(requests: Sequence[Retrieval]) -> Retrieval:
    """Returns one request for the queries of several that are alike."""
    columns = [request.features or {} for request in requests]
    return replace(requests[0], features={name: _joined([each[name] for each in columns]) for name in columns[0]})


def split(answer: Retrieved, n: int) -> list[Retrieved]:
    """Returns the answer to each of the n requests that were joined.

    Raises:
      ValueError: it has not n queries, so that it is no answer to them.
    """
    found = answer.neighbors
    ends = found.offsets.tolist()
    if len(ends) != n + 1:
        raise ValueError(f"{len(ends) - 1} queries were answered, {n} were joined")
    ids, scores = found.ids, found.scores
    size, offsets = ends[1], found.offsets[:2]  # of all those that found as many
    parts = []
    for first, end in pairwise(ends):
        if end - first != size:
            size, offsets = end - first, np.array([0, end - first], np.int64)
        attributes = {name: values[first:end] for name, values in found.attributes.items()} if found.attributes else {}
        neighbors = Neighbors(ids[first:end], scores[first:end], offsets, attributes)
        parts.append(Retrieved(answer.model, answer.version, neighbors, answer.searched))
    return parts


def _joined(columns: Sequence[Column]) -> Column:
    values = np.concatenate([column.values for column in columns])
    if columns[0].offsets is None:
        return Column(values)
    offsets = np.zeros(len(columns) + 1, np.int64)
    np.cumsum([column.values.size for column in columns], out=offsets[1:])
    return Column(values, offsets)
