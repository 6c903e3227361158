"""What accompanies a batch while it is computed: the deadlines of its requests, its phases, and the
threads that may take part.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import Fetched
from bundle.tables.offsets import Offsets, lengths_of
from service.contract.messages import Ids
from service.engine.context import RequestContext
from service.engine.live_recall import LiveRecall
from service.engine.scheduling.admission import Estimates
from service.engine.scheduling.compute_pool import ComputePool
from service.engine.score_drift import ScoreDrift
from service.observability import logging
from service.observability.metrics import Metrics
from service.versions.version import LoadedTower

log = logging.logger(__name__)

_IDS_LOGGED_MAX = 10
"""Maximum number of ids of candidates in a line of the log."""


class NotTogether(Exception):
    """Requests of a batch may get another result than they would alone, such as where a shard could
    not give a row: each is computed alone.

    Attributes:
      fetched: What shards gave, for the computations that follow; None: nothing to keep.
    """

    def __init__(self, fetched: Fetched | None = None) -> None:
        super().__init__()
        self.fetched = fetched


class Execution:
    """One batch while it is computed. `begin` stands before every expensive step.

    Attributes:
      call: The call of every request of the batch.
      phases: The seconds of each phase, of the whole batch.
      counts: What is added to counters of `Metrics`, by their names and labels.
      lookups: The number of examples for which features were looked up, by model and features.
      estimates: The time that computations of the process take, on average.
      rows_fetched, rows_lost: The number of rows of remote tables that the batch read, and of those
        that no shard could give.
      searched_share: The share of the candidates of an index that shards could search.
      reserved_s: The time before the deadline that the present step must leave to later ones.
      fetched_before: The remote rows that a batch of these requests and others fetched; None: there
        was none.
      live_recall: The sampler of queries; None: none are sampled.
    """

    def __init__(
        self,
        call: str,
        contexts: Sequence[RequestContext] = (),
        metrics: Metrics | None = None,
        pool: ComputePool | None = None,
        estimates: Estimates | None = None,
        fetched_before: Fetched | None = None,
        live_recall: LiveRecall | None = None,
        score_drift: ScoreDrift | None = None,
        ends: Offsets | None = None,
    ) -> None:
        """Creates the execution of a batch; with a call alone, of a warm-up or a replay.

        Args:
          call: The call.
          contexts: The contexts of its requests; (): nothing ends the batch early.
          metrics: The metrics of the process; None: nothing is recorded.
          pool: The threads that may take part while they are idle; None: the calling thread
            computes alone.
          estimates: The estimates of the process; None: nothing is known yet.
          fetched_before, live_recall: See above.
          score_drift: Counts scores; None: they are not counted.
          ends: [r + 1], request i has the examples ends[i]:ends[i + 1]; None: there is one request.
        """
        self.call = call
        self.phases = defaultdict[str, float](float)
        self.counts = defaultdict[tuple[str, tuple[str, ...]], int](int)
        self.lookups = defaultdict[tuple[str, tuple[str, ...]], int](int)
        self._phase = ""
        self._began = 0.0
        self.estimates = estimates or Estimates()
        self._contexts = contexts
        self._metrics = metrics
        self._pool = pool
        self.fetched_before = fetched_before
        self.live_recall = live_recall
        self._score_drift = score_drift
        self._ends = ends
        self.rows_fetched = 0
        self.rows_lost = 0
        self.searched_share = 1.0
        self.reserved_s = 0.0

    def check(self) -> float:
        """Raises Cancelled or DeadlineExceeded if no request of the batch is worth computing any
        more; returns the time.
        """
        now = time.monotonic()
        for context in self._contexts:
            if now < context.deadline and not context.cancelled:
                return now
        # Nobody waits for any of them: the first one says why.
        for context in self._contexts:
            context.check()
        return now

    def check_alone(self) -> None:
        """Raises NotTogether if the batch has several requests; to be called before something is
        left out, which may be due to another one.
        """
        if self.request_count > 1:
            raise NotTogether

    def leave_out(self, reason: str, ids: Ids) -> None:
        """Counts and logs candidates that a response lacks because they cannot be scored, by ids.

        The request did not name them, and whoever did has to be found: the log has their ids.

        Args:
          reason: A reason of the metric.
          ids: The ids of the candidates.

        Raises:
          NotTogether: The batch has several requests, whose other candidates must not depend on it.
        """
        self.check_alone()
        if not self._contexts:  # a warm-up
            return
        request = self._contexts[0]
        self.count("candidates_left_out", ids.size, request.model, reason)
        extra = logging.fields(
            model=request.model,
            version=request.version,
            call=self.call,
            reason=reason,
            candidates=ids.size,
            ids=ids[:_IDS_LOGGED_MAX].tolist(),
        )
        log.warning("candidates_left_out", extra=logging.limited(extra, request.model, reason))

    def begin(self, phase: str) -> None:
        """Checks, and ends the phase before this one.

        Raises:
          Cancelled, DeadlineExceeded: See `check`.
        """
        now = self.check()
        if self._phase:
            self.phases[self._phase] += now - self._began
        self._phase = phase
        self._began = now

    def end(self) -> None:
        """Ends the last phase."""
        if self._phase:
            self.phases[self._phase] += time.monotonic() - self._began
            self._phase = ""

    @property
    def left_s(self) -> float:
        """How long it is to the last deadline of the batch, less what is reserved; infinite without
        one.

        Requests with an earlier deadline are failed at theirs, wherever the batch is.
        """
        deadline = max([context.deadline for context in self._contexts], default=math.inf)
        return deadline - self.reserved_s - time.monotonic()

    @property
    def least_left_s(self) -> float:
        """How long it is to the first deadline of the batch; infinite without one.

        What a request does without for want of time depends on its own deadline.
        """
        deadline = min([context.deadline for context in self._contexts], default=math.inf)
        return deadline - time.monotonic()

    @property
    def row_coverage(self) -> float:
        """The share of the rows that were read from shards which they could give."""
        if not self.rows_lost:
            return 1.0
        return 1 - self.rows_lost / self.rows_fetched

    @property
    def request_count(self) -> int:
        """The number of requests of the batch."""
        return max(1, len(self._contexts))

    def parts(self, n: int) -> list[tuple[int, int]]:
        """Returns the range of n examples, first and end, that belongs to each request: limits
        are those of a request, not of a batch.
        """
        if self._ends is None:
            return [(0, n)]
        return list(pairwise(self._ends.tolist()))

    def largest(self, count: int, offsets: Offsets | None = None) -> int:
        """Returns the maximum number of examples, or of values of these, of one request.

        Args:
          count: The examples, or values, of all requests.
          offsets: [n + 1], which values belong to each example; None: examples are counted.
        """
        if self._ends is None:
            return count
        # Of a batch, the largest request counts: limits are those of a request.
        ends = self._ends
        if offsets is not None:
            ends = offsets[ends]
        return int(lengths_of(ends).max())

    @property
    def idle_threads(self) -> int:
        """The number of further threads that would take part in `parallel` now."""
        if self._pool is None:
            return 0
        return self._pool.idle

    def parallel(self, count: int, compute: Callable[[int], None]) -> None:
        """Runs compute(0) to compute(count - 1), on idle compute threads too; checks before each of
        several.

        Raises:
          Exception: The error that a computation raises; none runs any more then.
        """
        if count == 1:  # `begin` has checked
            compute(0)
            return
        if self._pool is None:
            for number in range(count):
                self.check()
                compute(number)
            return

        def checked(number: int) -> None:
            self.check()
            compute(number)

        self._pool.parallel(count, checked)

    def count(self, name: str, amount: int, *labels: str) -> None:
        """Adds to a counter of `Metrics`, once the batch has ended."""
        if amount:
            self.counts[name, labels] += amount

    def gauge(self, name: str, value: float) -> None:
        """Sets a gauge of `Metrics`."""
        if self._metrics is not None:
            self._metrics.set(name, value)

    def count_examples(self, examples: int, candidates: int = 0) -> None:
        """Counts the queries, contexts or examples of the batch, and its candidates."""
        self.count("examples", examples, self.call)
        if candidates:
            self.count("candidates", candidates, self.call)

    def count_looked_up(self, model: str, groups: Sequence[tuple[str, ...]], examples: int) -> None:
        """Counts the examples for which groups of features were looked up."""
        for features in groups:
            self.lookups[model, features] += examples

    def count_scores(self, tower: LoadedTower, scores: NDArray[np.float32], contexts: int) -> None:
        """Counts [m] scores of candidates that no formula of a request has changed."""
        if self._score_drift is not None and tower.entry.scores is not None:
            self._score_drift.count(tower, scores, contexts)
