"""Rankings that are asked at the same time -> one: what a call costs beside its candidates is paid once for all.

Joined are requests of one context each that differ in nothing but their ids and numbers. Rows are read and combined,
and a compiled tower computes, for each example by itself, so that scores have the bits that they have alone; what
TensorFlow computes may differ in the last ones, as in any batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Column
from service.engine.requests import Offsets, Ranked, Ranking

JOINED_MAX = 8
"""Requests joined; more save next to nothing, and the first would wait for the last."""
CANDIDATES_MAX = 64
"""Of a request that is joined. Of eight of 10 each takes a half to two thirds of what it takes alone, of eight of 50
five sixths, of eight of 200 as much (`python -m tests.bench.rankings`): there the first would wait for the last for
nothing."""


def likeness(request: Ranking) -> Hashable | None:
    """Returns what is equal for requests that can be joined; None: this one cannot, or it would not pay."""
    if request.context_ids is not None or (request.offsets is not None and request.offsets.size != 2):
        return None
    m = _candidates(request)
    if not 0 < m <= CANDIDATES_MAX:
        return None
    context = _columns(request.context, 1)
    candidates = _columns(request.candidates, m)
    if context is None or candidates is None:
        return None
    ids = None if request.candidate_ids is None else request.candidate_ids.dtype.char
    return (request.tower, request.formula, request.heads, request.k, ids, context, candidates)


def join(requests: Sequence[Ranking]) -> Ranking:
    """Returns one request for the contexts of several that are alike."""
    counts = [_candidates(request) for request in requests]
    ids = [request.candidate_ids for request in requests if request.candidate_ids is not None]
    first = requests[0]
    return replace(
        first,
        context=_joined([request.context for request in requests], [1] * len(requests)),
        candidates=_joined([request.candidates for request in requests], counts),
        candidate_ids=np.concatenate(ids) if ids else None,
        offsets=_ends(counts),
    )


def split(answer: Ranked, n: int) -> list[Ranked]:
    """Returns the answer to each of the n requests that were joined.

    Raises:
      ValueError: it has not n contexts, so that it is no answer to them.
    """
    ends = answer.offsets.tolist()
    if len(ends) != n + 1:
        raise ValueError(f"{len(ends) - 1} contexts were answered, {n} were joined")
    return [
        replace(
            answer,
            ids=None if answer.ids is None else answer.ids[first:end],
            positions=answer.positions[first:end],
            scores=answer.scores[first:end],
            heads={name: scores[first:end] for name, scores in answer.heads.items()},
            offsets=np.array([0, end - first], np.int64),
        )
        for first, end in pairwise(ends)
    ]


def _candidates(request: Ranking) -> int:
    """Returns how many candidates a request of one context says it has.

    Where only its features tell, one value for each is taken; if it is several, the joined request is refused by its
    offsets, and each is computed alone.
    """
    if request.offsets is not None:
        return int(request.offsets[-1])
    if request.candidate_ids is not None:
        return int(request.candidate_ids.size)
    columns = request.candidates.values()
    return min(
        (column.values.size if column.offsets is None else column.offsets.size - 1 for column in columns), default=0
    )


def _columns(columns: Mapping[str, Column], m: int) -> tuple[tuple[str, str, int], ...] | None:
    """Returns what is equal for columns that can be joined: name, dtype, and how many values each of m examples has.

    The number is -1 where offsets tell; None: they cannot be joined.
    """
    found = []
    for name, (values, offsets, weights) in columns.items():
        if weights is not None or values.ndim != 1:
            return None
        if offsets is None:
            each, left = divmod(values.size, m)
        else:
            each, left = -1, offsets.size - m - 1
        if left:
            return None
        found.append((name, values.dtype.char, each))
    return tuple(sorted(found))


def _joined(requests: Sequence[Mapping[str, Column]], counts: Sequence[int]) -> dict[str, Column]:
    joined = {}
    for name, (_, offsets, _) in requests[0].items():
        columns = [columns[name] for columns in requests]
        values: NDArray[Any] = np.concatenate([column.values for column in columns])
        if offsets is None:
            joined[name] = Column(values)
            continue
        starts = _ends([column.values.size for column in columns])[:-1]
        shifted = [column.offsets[:-1] for column in columns if column.offsets is not None]
        ends = np.append(np.concatenate(shifted) + starts.repeat(counts), values.size)
        joined[name] = Column(values, ends)
    return joined


def _ends(sizes: Sequence[int]) -> Offsets:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
