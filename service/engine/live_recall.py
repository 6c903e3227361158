"""The recall of live retrievals: a share of the queries of an approximate index is searched again,
exactly, among all candidates that they were allowed to find: those of the bundle, and those that
changed since.

A request never waits for that. Its query is copied into a bounded queue, and one thread of the
lowest priority searches in short steps, only while no request is in progress, within a budget of
CPU time. In a step, numpy releases the GIL for nearly all of the time. Between two steps the thread
holds no lease and no reference to the version, so that a retired version is closed and freed; its
queries are dropped. Queries count only for the current version of a model.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.exact import exact_scores, normalized
from service.engine.filters import is_among
from service.engine.neighbors import Neighbors, SearchedPart
from service.errors import ServiceError
from service.observability.derived_metrics import RECALL_SUMS
from service.observability.logging import logger
from service.observability.metrics import Metrics
from service.observability.sliding_sums import SlidingSums
from service.versions.lifecycle import VersionManager
from service.versions.version import LiveIndex, LoadedIndex

log = logger(__name__)

QUEUE_MAX = 64
"""Maximum number of sampled queries that wait; further ones are dropped. A longer queue takes more
memory and measures no more: the budget of CPU time decides how many are searched.
"""
_QUEUE_BYTES_MAX = 16 << 20
"""Memory of the queries that wait, in bytes, from which no further one is taken: each keeps which
candidates it was allowed to find.
"""
_STEP_BYTES = 1 << 20
"""Bytes of the vectors that are scored in one step, which takes a fraction of a millisecond. A
request that arrives meanwhile waits for the rest of the step.
"""
_BURST_S = 0.002
"""Maximum CPU time that the thread may have saved while it had nothing to do, in seconds: a few
steps. With more, the first seconds of a load would pay for the idle time before them.
"""
_PAUSE_MIN_S = 0.001
"""Minimum pause in seconds: shorter ones cost more than they are for."""
_BUSY_S = 0.02
"""Pause before another look at the requests in progress, in seconds. Each look takes the GIL from
them; with longer pauses, a busy process is seldom found idle.
"""
_LOWEST_PRIORITY = 19
"""Priority of the thread, as the `nice` value of Linux."""


class CpuBudget:
    """CPU time that one thread may spend: a token bucket, filled by a share of the time that
    passes.

    A step is begun while the bucket is not empty, and may leave it in debt, which the next pause
    pays back.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Creates an empty bucket, in the thread whose time it counts.

        Args:
          share: The share of one core, above 0.
          clock: Returns the current monotonic time in seconds.
          cpu_clock: Returns the CPU time of the thread in seconds.
        """
        self._share = share
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._updated_s = clock()
        self._spent_s = cpu_clock()
        self._balance_s = 0.0

    def pause_s(self) -> float:
        """Returns how long the thread has to wait before it goes on; 0: it need not."""
        now_s = self._clock()
        spent_s = self._cpu_clock()
        earned_s = self._share * (now_s - self._updated_s)
        balance_s = self._balance_s + earned_s - (spent_s - self._spent_s)
        self._balance_s = min(_BURST_S, balance_s)
        self._updated_s = now_s
        self._spent_s = spent_s
        return max(0.0, -self._balance_s / self._share)


@dataclass(eq=False)
class _Part:
    """A part of an index that was searched approximately for a query, and how much of it was
    searched exactly.

    Attributes:
      changed: [size, dim] float32, the vectors of changed candidates, which stay when others are
        changed; None: the part is the bundle, whose vectors are not kept from being closed.
      matches: [m] positions of the candidates that match the filter; None: there is none.
      excluded: Positions that the query must not find, each array ascending.
      scored: The number of candidates that are scored already.
    """

    changed: NDArray[np.float32] | None
    matches: NDArray[np.uint32] | None
    excluded: tuple[NDArray[np.uint32], ...]
    scored: int = 0

    @property
    def bytes(self) -> int:
        """Memory that it keeps from being freed."""
        arrays = [*self.excluded]
        if self.matches is not None:
            arrays.append(self.matches)
        return sum(array.nbytes for array in arrays)


@dataclass(eq=False)
class _Query:
    """A sampled query, and what of its exact search is done.

    Attributes:
      index: The index of the bundle.
      vector: [dim] float32, as it was searched.
      k: The number of neighbors that were searched.
      scores: The scores of the response, best first.
      parts: The parts that are to be searched exactly still.
      best: The best exact scores so far, at most k, in no order.
    """

    model: str
    name: str
    index: weakref.ref[LoadedIndex]
    vector: NDArray[np.float32]
    k: int
    scores: NDArray[np.float32]
    parts: Sequence[_Part]
    best: NDArray[np.float32]

    @property
    def bytes(self) -> int:
        """Memory that it keeps from being freed."""
        parts_bytes = sum(part.bytes for part in self.parts)
        return self.vector.nbytes + self.scores.nbytes + parts_bytes

    def search_step(self, part: _Part, index: LoadedIndex) -> None:
        """Scores the next candidates of a part, which is the first one; `index`: of the bundle."""
        vectors = index.vectors
        if part.changed is not None:
            vectors = part.changed
        size = len(vectors)
        if part.matches is not None:
            size = part.matches.size
        # At least one, however long a vector is: else the search would never end.
        count = max(1, _STEP_BYTES // (4 * index.entry.dim))
        end = min(size, part.scored + count)
        positions: NDArray[Any]
        if part.matches is None:
            positions = np.arange(part.scored, end)
        else:
            positions = part.matches[part.scored : end]
        scores = exact_scores(vectors, self.vector, positions, index.entry.distance)
        is_finite = np.isfinite(scores)
        if not is_finite.all():  # responses do not have such candidates either
            scores = scores[is_finite]
            positions = positions[is_finite]
        # Few candidates are better than the best so far: only these are looked up below.
        if self.best.size == self.k:
            is_better = scores > self.best.min()
            scores = scores[is_better]
            positions = positions[is_better]
        for excluded in part.excluded:
            is_allowed = ~is_among(positions, excluded)
            scores = scores[is_allowed]
            positions = positions[is_allowed]
        self.best = _best(np.concatenate([self.best, scores]), self.k)
        part.scored = end
        if end == size:
            self.parts = self.parts[1:]

    def hits(self) -> int:
        """Returns how many of the exact nearest candidates the response had: those whose scores
        reach that of the last of them, since one of equal candidates is as near as another.
        """
        return int(np.count_nonzero(self.scores >= self.best.min()))


def _best(scores: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Returns the k best of some scores, in no order."""
    if scores.size <= k:
        return scores
    return np.partition(scores, scores.size - k)[-k:]


class _Window:
    """What was measured of one index in the last hour."""

    def __init__(self, index: LoadedIndex) -> None:
        self.index = weakref.ref(index)
        self.target = index.entry.recall.target
        self.sums = SlidingSums(len(RECALL_SUMS))


class LiveRecall:
    """Samples queries, searches them exactly, and counts which neighbors the responses had. Safe
    for any thread.

    Attributes:
      countdown: The number of queries before the next one is sampled. Each search subtracts the
        number of its queries, and calls `sample` once it is below 0: most queries cost no call.
    """

    def __init__(
        self,
        versions: VersionManager,
        metrics: Metrics,
        share: float,
        cpu_share: float,
        inflight: Callable[[], int],
    ) -> None:
        """Creates the sampler; its thread starts with the first sampled query.

        Args:
          versions: The loaded versions.
          metrics: Where queries, hits and neighbors are counted.
          share: The share of the queries that are sampled, above 0.
          cpu_share: The maximum share of one core.
          inflight: Returns the number of requests in progress.
        """
        self._versions = versions
        self._metrics = metrics
        self._share = share
        self._cpu_share = cpu_share
        self._inflight = inflight
        self._random = random.Random()  # noqa: S311
        self._lock = threading.Lock()
        self._queue: deque[_Query] = deque()
        self._windows: dict[tuple[str, str], _Window] = {}
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self.countdown = self._draw_skip()

    @property
    def queued(self) -> int:
        """How many sampled queries wait, with the one that is being searched."""
        return len(self._queue)

    def sample(
        self,
        index: LoadedIndex,
        vectors: NDArray[np.float32],
        k: int,
        parts: Sequence[SearchedPart],
        neighbors: Neighbors,
    ) -> None:
        """Queues those of some queries that `countdown` selects, if an approximate index found
        some of their neighbors.

        Args:
          index: The index of the bundle.
          vectors: [n, dim] float32.
          k: The number of neighbors that were searched.
          parts: What was found in the index of the bundle, and among the candidates behind it.
          neighbors: What was found in all of them.
        """
        count = len(vectors)
        numbers = list[int]()
        with self._lock:
            while self.countdown < 0:
                numbers.append(count + self.countdown)
                self.countdown += 1 + self._draw_skip()
        for number in numbers:
            # Threads may subtract at a time, so that a number is another thread's.
            if 0 <= number < count:
                self._add(index, vectors[number], k, parts, number, neighbors)

    def report(self) -> None:
        """Sets the gauges, and drops what belongs to versions that are not current any more; call
        it once per second.
        """
        current = self._current_indexes()
        with self._lock:
            for query in list(self._queue):
                if query.index() not in current.values():
                    self._queue.remove(query)
                    self._count(query, "dropped")
            windows = dict(self._windows)
            for (model, name), window in windows.items():
                if window.index() is not current.get((model, name)):
                    del self._windows[model, name]
                    totals = [0.0] * len(RECALL_SUMS)
                else:
                    totals = window.sums.totals()
                    self._metrics.set("live_recall_target", window.target, model, name)
                for term, total in zip(RECALL_SUMS, totals, strict=True):
                    self._metrics.set("live_recall_window", total, model, name, term)

    def close(self) -> None:
        """Ends the thread; queries that wait are not searched."""
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _draw_skip(self) -> int:
        """Returns how many queries to skip, so that each is sampled with the same probability,
        independently of the others.
        """
        if self._share >= 1:
            return 0
        # Skips between independent samples have a geometric distribution; `draw` is never 0.
        draw = 1 - self._random.random()
        return int(math.log(draw) / math.log1p(-self._share))

    def _current_indexes(self) -> dict[tuple[str, str], LoadedIndex]:
        """Returns the indexes of current versions that are here, by model and name."""
        return {
            (model, name): served.here
            for model, version in self._versions.current().items()
            for name, served in version.indexes.items()
            if served.here is not None
        }

    def _add(
        self,
        index: LoadedIndex,
        vector: NDArray[np.float32],
        k: int,
        parts: Sequence[SearchedPart],
        number: int,
        neighbors: Neighbors,
    ) -> None:
        """Queues one of some queries, unless its neighbors are exact; see `sample`."""
        if index.entry.kind == "brute_force":  # which scores all candidates
            return
        # Parts that were searched exactly need no second search.
        known_scores = [np.empty(0, np.float32)]
        approximate_parts = []
        for part in parts:
            if part.neighbors.explanations[number].path == "index":
                approximate_parts.append(_part(part, number))
            else:
                known_scores.append(_scores_of(part.neighbors, number))
        if not approximate_parts:
            return
        # A version under test or kept for a rollback is not measured.
        keys = [key for key, current in self._current_indexes().items() if current is index]
        if not keys:
            return
        model, name = keys[0]
        if index.entry.distance == "cosine":
            # As the index searched it, so that exact scores are comparable.
            vector = normalized(vector[np.newaxis])[0]
        query = _Query(
            model=model,
            name=name,
            index=weakref.ref(index),
            vector=np.array(vector),
            k=k,
            scores=_scores_of(neighbors, number),
            parts=approximate_parts,
            best=_best(np.concatenate(known_scores), k),
        )
        with self._lock:
            # At most QUEUE_MAX queries wait, so that the sum of their sizes need not be kept.
            queued_bytes = sum(waiting.bytes for waiting in self._queue)
            is_full = len(self._queue) >= QUEUE_MAX or queued_bytes >= _QUEUE_BYTES_MAX
            if is_full or self._closing.is_set():
                self._count(query, "dropped")
                return
            self._queue.append(query)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rowcast-live-recall", daemon=True
                )
                self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        """Searches what is queued until the sampler is closed; the function of the thread."""
        _lower_priority()
        budget = CpuBudget(self._cpu_share)
        while not self._closing.is_set():
            with self._lock:
                query = None
                if self._queue:
                    query = self._queue[0]
                else:
                    # Under the lock: what is queued afterwards sets it again.
                    self._wanted.clear()
            if query is None:
                self._wanted.wait()
                continue
            pause_s = budget.pause_s()
            if self._inflight():
                pause_s = max(pause_s, _BUSY_S)
            if pause_s > 0:
                pause_s = max(pause_s, _PAUSE_MIN_S)
                del query  # it may keep arrays of a version that is retired meanwhile
                self._closing.wait(pause_s)
                continue
            try:
                self._advance(query)
            except Exception:
                log.exception("live_recall_failed")
                self._finish(query, None)

    def _advance(self, query: _Query) -> None:
        """Does one step of an exact search, with a lease of the version for as long."""
        try:
            # Acquired for each step: between two steps, a retired version can be closed.
            lease = self._versions.acquire(query.model)
        except ServiceError:
            self._finish(query, None)
            return
        with lease as version:
            served = version.indexes.get(query.name)
            index = None
            if served is not None:
                index = served.here
            if index is None or query.index() is not index:
                self._finish(query, None)
                return
            query.search_step(query.parts[0], index)
            if not query.parts:
                self._finish(query, index)

    def _finish(self, query: _Query, index: LoadedIndex | None) -> None:
        """Counts what was found, and takes the query from the queue.

        Args:
          query: The query.
          index: The index that the query was compared with; None: the query is dropped.
        """
        with self._lock:
            # The report may have dropped it.
            if query not in self._queue:
                return
            self._queue.remove(query)
            if index is None:
                self._count(query, "dropped")
                return
            self._count(query, "searched")
            if not query.best.size:  # nothing was allowed
                return
            neighbors = query.best.size
            hits = query.hits()
            self._metrics.count("live_recall_hits", hits, query.model, query.name)
            self._metrics.count("live_recall_neighbors", neighbors, query.model, query.name)
            key = (query.model, query.name)
            window = self._windows.get(key)
            if window is None or window.index() is not index:
                window = self._windows[key] = _Window(index)
            window.sums.add([hits, neighbors, neighbors * neighbors])

    def _count(self, query: _Query, outcome: str) -> None:
        self._metrics.count("live_recall_queries", 1, query.model, query.name, outcome)


def _part(part: SearchedPart, number: int) -> _Part:
    """Returns what is to be searched exactly of a part, for one of the queries."""
    allowed = part.allowed
    matches = None
    if allowed.filter is not None:
        matches = allowed.filter.matches.positions
    excluded = [allowed.denied, allowed.excluded[number]]
    changed = None
    if isinstance(part.loaded, LiveIndex):
        changed = part.loaded.vectors
    return _Part(
        changed=changed,
        matches=matches,
        excluded=tuple(positions for positions in excluded if positions.size),
    )


def _scores_of(neighbors: Neighbors, number: int) -> NDArray[np.float32]:
    """Returns the scores of the neighbors of one of the queries."""
    first, end = neighbors.offsets[number : number + 2].tolist()
    return np.array(neighbors.scores[first:end])


def _lower_priority() -> None:
    """Gives the calling thread the lowest priority, where threads have one of their own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
