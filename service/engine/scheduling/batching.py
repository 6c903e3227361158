"""Batches: the queue that they are taken from, which requests can be computed as one, how these are
merged, and how the answer is split.

Merged are requests that differ in nothing but their ids and numbers. Rows are read and combined,
and compiled towers and searches compute, for each example by itself, so that every request gets the
bits that it would get alone. Exclusions stay alone: over-fetching for one query would change what
is found for another.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import offsets_of
from service.engine.calls import Offsets, Ranked, Ranking, Retrieval, Retrieved
from service.engine.computation import Computation, RemoteCall, Resume
from service.engine.context import RequestContext
from service.versions.lifecycle import Lease

RANKED_MAX = 64
"""Candidates of a request that is merged: larger ones gain nothing, and the first would wait for
the last.
"""
_NOT_MERGED = [
    (each.name, each.default)
    for each in fields(Retrieval)
    if each.name not in {"target", "context", "index", "k", "attributes", "not_found"}
]
"""Options with their defaults: a retrieval that sends another value is computed alone. `not_found`
is of the ids of retrievals, which are computed alone anyway.
"""


@dataclass(eq=False, slots=True)
class Job:
    """A request between its admission and its answer.

    Attributes:
      kind: requests of one kind take about equally long.
      group: the model and the call, which are known before the request is decoded.
      cost: in candidates, a query or example counting as one.
      key: requests with an equal key can be computed as one batch; None: this one is computed
        alone.
      future: the answer.
      expected_s: how long its computation is expected to take.
      predicted_s: how long it would wait if nothing but the queue took time.
      sweeps: how often it was looked over.
      watcher: ends when the client has hung up; None: nothing watches the connection.
    """

    request: Any
    context: RequestContext
    lease: Lease
    kind: Hashable
    group: tuple[str, str]
    cost: int
    key: Hashable
    future: asyncio.Future[Any]
    expected_s: float = 0.0
    predicted_s: float = 0.0
    queued_at: float = 0.0
    sweeps: int = 0
    watcher: asyncio.Future[object] | None = None


class BatchQueue:
    """Jobs in order of arrival, those with equal keys together."""

    def __init__(self, batch_max: int, expected_max_s: float = math.inf) -> None:
        """Creates an empty queue.

        Args:
          batch_max: Maximum number of jobs in one batch.
          expected_max_s: Maximum sum of the expected times of a batch of several jobs.
        """
        self._batch_max = batch_max
        self._expected_max_s = expected_max_s
        self._jobs: OrderedDict[Hashable, dict[Job, None]] = OrderedDict()
        self.size = 0
        self.cost = 0
        self.expected_s = 0.0

    def __iter__(self) -> Iterator[Job]:
        return chain.from_iterable(self._jobs.values())

    def add(self, job: Job) -> None:
        """Appends a job."""
        self._jobs.setdefault(job if job.key is None else job.key, {})[job] = None
        self._count(job, 1)

    def take(self) -> list[Job]:
        """Removes and returns the first batch; empty: nothing waits."""
        if not self._jobs:
            return []
        batch: list[Job] = []
        expected_s = 0.0
        key = next(iter(self._jobs))
        alike = self._jobs[key]
        for job in islice(alike, self._batch_max):
            expected_s += job.expected_s
            if batch and expected_s > self._expected_max_s:
                break
            batch.append(job)
        for job in batch:
            del alike[job]
            self._count(job, -1)
        if not alike:
            del self._jobs[key]
        return batch

    def remove(self, job: Job) -> bool:
        """Removes a job if it still waits; returns whether it did."""
        key = job if job.key is None else job.key
        alike = self._jobs.get(key, {})
        if job not in alike:
            return False
        del alike[job]
        self._count(job, -1)
        if not alike:
            del self._jobs[key]
        return True

    def _count(self, job: Job, sign: int) -> None:
        self.size += sign
        self.cost += sign * job.cost
        self.expected_s = self.expected_s + sign * job.expected_s if self.size else 0.0


class Batch:
    """Jobs that are computed as one, in steps: after each, other processes are called.

    Attributes:
      jobs: All are alive when the first step begins.
      expected_s: How long all steps are expected to take.
      on_loop: Whether the event loop computes it; else compute threads do.
      seconds: How long the steps so far took.
      answers: Of each job, after the last step.
    """

    def __init__(
        self, jobs: Sequence[Job], computation: Computation[Sequence[Any]], on_loop: bool
    ) -> None:
        self.jobs = jobs
        self.expected_s = sum([job.expected_s for job in jobs])
        self.on_loop = on_loop
        self.seconds = 0.0
        self.answers: Sequence[Any] = ()
        self._computation = computation
        self._resume: Resume = functools.partial(computation.send, None)

    def step(self) -> RemoteCall[Any] | None:
        """Computes to the next call of other processes; None: the batch is complete."""
        try:
            return self._resume()
        except StopIteration as end:
            self.answers = end.value
            return None

    def receive(self, call: asyncio.Future[Any]) -> None:
        """Takes the result of a call, or its failure, for the next step."""
        problem = call.exception()
        if problem is None:
            self._resume = functools.partial(self._computation.send, call.result())
        else:
            self._resume = functools.partial(self._computation.throw, problem)


def batch_key(request: Any) -> Hashable | None:
    """Returns what is equal for requests that can be merged; None: this one is computed alone."""
    if isinstance(request, Retrieval):
        return _retrieval_key(request)
    return _ranking_key(request) if isinstance(request, Ranking) else None


def merge(requests: Sequence[Any]) -> Any:
    """Returns one request for several whose keys are equal."""
    first = requests[0]
    if isinstance(first, Retrieval):
        return replace(
            first, context=_merged([each.context for each in requests], [1] * len(requests))
        )
    counts = [_candidate_count(request) for request in requests]
    ids = [request.candidate_ids for request in requests if request.candidate_ids is not None]
    return replace(
        first,
        context=_merged([request.context for request in requests], [1] * len(requests)),
        candidate_features=_merged([each.candidate_features for each in requests], counts),
        candidate_ids=np.concatenate(ids) if ids else None,
        offsets=offsets_of(counts),
    )


def split(answer: Any, count: int) -> list[Any]:
    """Returns the answer of each of `count` merged requests.

    Raises:
      ValueError: the answer is not to `count` requests.
    """
    offsets: Offsets = answer.offsets
    if offsets.size != count + 1:
        raise ValueError(f"{offsets.size - 1} requests were answered, {count} were merged")
    part = _retrieved_part if isinstance(answer, Retrieved) else _ranked_part
    parts = [part(answer, first, end) for first, end in pairwise(offsets.tolist())]
    if isinstance(answer, Ranked) and answer.not_found is not None:
        for number, ranked in enumerate(parts):
            parts[number] = replace(ranked, not_found=answer.not_found.only(number))
    return parts


def _retrieval_key(request: Retrieval) -> Hashable | None:
    if request.context is None or not _is_plain(request):
        return None
    # More values than one are several queries or one dense value: that is not known here.
    columns = _column_keys(request.context, 1, 1)
    if columns is None:
        return None
    return ("retrieve", request.index, request.k, request.attributes, columns)


def _is_plain(request: Retrieval) -> bool:
    options = vars(request)
    for name, default in _NOT_MERGED:
        value = options[name]
        # Arrays are sent only for options whose default is None.
        is_default = value is None if default is None else value == default
        if not is_default:
            return False
    return True


def _ranking_key(request: Ranking) -> Hashable | None:
    if request.context_ids is not None or (
        request.offsets is not None and request.offsets.size != 2
    ):
        return None
    m = _candidate_count(request)
    if not 0 < m <= RANKED_MAX:
        return None
    context = _column_keys(request.context, 1)
    candidates = _column_keys(request.candidate_features, m)
    if context is None or candidates is None:
        return None
    ids = None if request.candidate_ids is None else request.candidate_ids.dtype.char
    return (
        "rank",
        request.tower,
        request.formula,
        request.heads,
        request.k,
        request.not_found,
        ids,
        context,
        candidates,
    )


def _candidate_count(request: Ranking) -> int:
    """Returns how many candidates a request of one context seems to have, one value of a feature
    for each.
    """
    if request.offsets is not None:
        return int(request.offsets[-1])
    if request.candidate_ids is not None:
        return int(request.candidate_ids.size)
    columns = request.candidate_features.values()
    return min(
        (
            column.values.size if column.offsets is None else column.offsets.size - 1
            for column in columns
        ),
        default=0,
    )


def _column_keys(
    columns: Mapping[str, Column], m: int, each_max: float = math.inf
) -> Hashable | None:
    """Returns what is equal for columns with the same names, dtypes and values per example.

    Args:
      columns: Of m examples.
      m: The number of examples.
      each_max: The maximum number of values per example of a column without offsets.

    Returns:
      None: the columns cannot be merged.
    """
    keys = {}
    for name, (values, offsets, weights) in columns.items():
        if weights is not None or values.ndim != 1:
            return None
        size = values.size
        if offsets is None:
            each = size // m
            if each * m != size or each > each_max:
                return None
        else:
            each = -1
            if offsets.size != m + 1 or offsets[0] != 0 or offsets[-1] != size:
                return None
        keys[name] = values.dtype.char, each
    return frozenset(keys.items())


def _merged(requests: Sequence[Mapping[str, Column]], counts: Sequence[int]) -> dict[str, Column]:
    merged = {}
    for name, (_, offsets, _) in requests[0].items():
        columns = [columns[name] for columns in requests]
        values: NDArray[Any] = np.concatenate([column.values for column in columns])
        if offsets is None:
            merged[name] = Column(values)
            continue
        starts = offsets_of([column.values.size for column in columns])[:-1]
        shifted = np.concatenate(
            [column.offsets[:-1] for column in columns if column.offsets is not None]
        )
        merged[name] = Column(values, np.append(shifted + starts.repeat(counts), values.size))
    return merged


def _retrieved_part(answer: Retrieved, first: int, end: int) -> Retrieved:
    attributes = {}
    for name, values in answer.attributes.items():
        attributes[name] = values[first:end]
    # A retrieval that is merged has no explanations; `replace` takes three times as many calls.
    return Retrieved(
        model=answer.model,
        version=answer.version,
        ids=answer.ids[first:end],
        scores=answer.scores[first:end],
        offsets=np.array([0, end - first], np.int64),
        attributes=attributes,
        searched=answer.searched,
    )


def _ranked_part(answer: Ranked, first: int, end: int) -> Ranked:
    return replace(
        answer,
        ids=None if answer.ids is None else answer.ids[first:end],
        positions=answer.positions[first:end],
        scores=answer.scores[first:end],
        heads={name: scores[first:end] for name, scores in answer.heads.items()},
        offsets=np.array([0, end - first], np.int64),
    )
