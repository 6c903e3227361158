"""What accompanies a request through the engine: its deadline and phases, and those of the batch it is computed in."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from service.engine.compute_pool import ComputePool
from service.errors import Cancelled, DeadlineExceeded
from service.observability.metrics import Metrics
from service.security.principal import Principal


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request on its way.

    Attributes:
      call: retrieve, rank, recommend, embed or lookup.
      deadline: on the clock of `time.monotonic()`.
      principal: the authenticated client; None: authentication is off.
      disconnected: returns once the client has hung up; None: the transport cancels the request itself.
      phases: seconds by phase, in the order in which they began.
      cancelled: nobody waits for the answer any more.
    """

    call: str
    request_id: str
    deadline: float
    principal: Principal | None = None
    disconnected: Callable[[], Awaitable[object]] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    cancelled: bool = False

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded if the request is not worth computing any more."""
        if self.cancelled:
            raise Cancelled("the client has gone")
        if time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the deadline of the request has passed")


class Execution:
    """One batch while it is computed; every expensive step runs inside `phase`.

    Attributes:
      call: the call of every request of the batch.
      phases: seconds by phase, of the whole batch.
    """

    def __init__(
        self,
        call: str,
        contexts: Sequence[RequestContext],
        metrics: Metrics | None = None,
        pool: ComputePool | None = None,
    ) -> None:
        """Begins a batch.

        Args:
          contexts: of its requests; none: nothing ends it early.
          metrics: None: nothing is recorded.
          pool: whose idle threads may take part; None: the calling thread computes alone.
        """
        self.call, self.phases = call, dict[str, float]()
        self._contexts, self._metrics, self._pool = contexts, metrics, pool
        self._phase, self._began = "", 0.0

    @classmethod
    def unrecorded(cls, call: str) -> Execution:
        """Returns an execution without a deadline and without metrics, for warm-up and replay."""
        return cls(call, ())

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded if no request of the batch is worth computing any more."""
        problem: Exception | None = None
        for context in self._contexts:
            try:
                context.check()
            except (Cancelled, DeadlineExceeded) as dead:
                problem = dead
            else:
                return
        if problem is not None:
            raise problem

    def phase(self, name: str) -> Execution:
        """Checks, then times the block of the `with` statement. Phases do not nest.

        Raises:
          Cancelled, DeadlineExceeded: as `check`.
        """
        self.check()
        self._phase, self._began = name, time.perf_counter()
        return self

    def __enter__(self) -> None:
        """Begins the phase."""

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        seconds = time.perf_counter() - self._began
        self.phases[self._phase] = self.phases.get(self._phase, 0.0) + seconds

    @property
    def idle_threads(self) -> int:
        """How many further threads would take part in `parallel` now."""
        return 0 if self._pool is None else self._pool.idle

    def parallel(self, count: int, compute: Callable[[int], None]) -> None:
        """Runs compute(0) to compute(count - 1), on idle compute threads too; checks before each.

        Raises:
          Exception: whatever one of them raises; none runs any more then.
        """

        def checked(number: int) -> None:
            self.check()
            compute(number)

        if self._pool is None:
            for number in range(count):
                checked(number)
        else:
            self._pool.parallel(count, checked)

    def computed(self, examples: int, candidates: int = 0) -> None:
        """Counts the queries, contexts or examples of the batch, and its candidates."""
        if self._metrics is not None:
            self._metrics.computed(self.call, examples, candidates)

    def looked_up(self, model: str, features: tuple[str, ...], examples: int) -> None:
        """Counts the examples for which features were looked up."""
        if self._metrics is not None:
            self._metrics.looked_up(model, features, examples)

    def oov_ids(self, model: str, feature: str, count: int) -> None:
        """Counts ids that are not in the table of a feature."""
        if count and self._metrics is not None:
            self._metrics.oov_ids(model, feature, count)

    def missing_contexts(self, model: str, store: str, count: int) -> None:
        """Counts contexts that are not in a context store."""
        if count and self._metrics is not None:
            self._metrics.missing_contexts(model, store, count)

    def tower_part(self, model: str, tower: str, part: str, examples: int) -> None:
        """Counts the examples that a part of a tower was run on."""
        if self._metrics is not None:
            self._metrics.tower_part(model, tower, part, examples)
