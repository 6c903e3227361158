"""One call's way through the engine: what is left of its time, whether anyone still waits, how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from bundle.features import Column
from service.engine.pieces import Helpers, Pieces
from service.errors import Cancelled, DeadlineExceeded, ServiceError
from service.generations.generation import Generation
from service.metrics import Metrics
from service.seen_ids import Kind


class Steps:
    """Handed down through one call; every dear step runs inside `phase`.

    Attributes:
      call: name of the call, one of `metrics.CALLS`.
      deadline: on the clock of `time.monotonic()`.
      helpers: may be called where the call is large; None: nobody.
      helped_s: seconds that they computed beyond those that whoever computes the call waited for them.
    """

    def __init__(
        self, call: str, deadline: float, metrics: Metrics | None, phases: Sequence[dict[str, float]] = ()
    ) -> None:
        """Begins a call.

        Args:
          call: one of `metrics.CALLS`.
          deadline: on the clock of `time.monotonic()`.
          metrics: None: nothing is counted (a warm-up).
          phases: where the seconds of each phase are told to the callers; several: their calls are computed as one.
        """
        self.call, self.deadline = call, deadline
        self._metrics, self._phases = metrics, phases
        self.helpers: Helpers | None = None
        self.helped_s = 0.0
        self._gone = False
        self._submitted: float | None = None
        self._phase, self._began = "", 0.0
        self._spent: dict[str, float] = {}

    def abandon(self) -> None:
        """Tells that nobody waits any more: the next dear step is not begun."""
        self._gone = True

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self._gone

    def check(self) -> None:
        """Ends the call here if it is not worth going on.

        Raises:
          DeadlineExceeded: out of time.
          Cancelled: the caller is gone.
        """
        if self._gone:
            raise Cancelled("the caller is gone")
        if time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the time for this call is over")

    def joined(self, others: Sequence[Steps]) -> Steps:
        """Returns the steps of calls of this name that are computed as one."""
        told = [phases for each in others for phases in each._phases]
        joined = Steps(self.call, min(each.deadline for each in others), self._metrics, told)
        joined.helpers = self.helpers
        return joined

    def each(self, count: int, compute: Callable[[int], None]) -> None:
        """Has so many pieces of this call computed, by whoever may help; checks before each.

        Args:
          count: of pieces.
          compute: computes the i-th, in any thread.
        Raises:
          DeadlineExceeded, Cancelled: as `check`. What the first piece that failed raised.
        """

        def piece(at: int) -> None:
            self.check()
            compute(at)

        if count > 1 and self.helpers is not None and self.helpers.piece_s and self.helpers.idle():
            self.helped_s += Pieces(count, piece).run(self.helpers)
        else:
            for at in range(count):
                piece(at)

    def beside(self) -> Steps:
        """Returns the steps of a piece of this call, for the thread that computes it."""
        return Steps(self.call, self.deadline, self._metrics)

    def divided(self, seconds: float, pieces: Sequence[Steps]) -> None:
        """Tells the phases of pieces that were computed beside each other: their shares of the time that all took."""
        spent: dict[str, float] = {}
        for piece in pieces:
            for phase, each in piece._spent.items():
                spent[phase] = spent.get(phase, 0.0) + each
        whole = sum(spent.values())
        for phase, each in spent.items():
            share = self._share(phase, seconds * each / (whole or 1))
            self._spent[phase] = self._spent.get(phase, 0.0) + share

    def submitted(self) -> None:
        """Tells that the call is queued."""
        self._submitted = time.perf_counter()

    def begun(self) -> None:
        """Tells that the call was taken up; records once how long it was queued, and checks.

        Raises:
          DeadlineExceeded, Cancelled: as `check`; counted as shed.
        """
        queued, self._submitted = self._submitted, None
        if queued is not None:
            self.record("queue", time.perf_counter() - queued)
        try:
            self.check()
        except ServiceError:
            if queued is not None:
                self.shed()
            raise

    def shed(self) -> None:
        """Counts a call that nobody waits for any more, and of which nothing was computed."""
        if self._metrics is not None:
            self._metrics.shed(self.call, "expired" if time.monotonic() >= self.deadline else "gone")

    def phase(self, name: str) -> Steps:
        """Checks, then times what runs in the context that it returns. Phases do not nest.

        Raises:
          DeadlineExceeded, Cancelled: as `check`.
        """
        if self._gone:
            raise Cancelled("the caller is gone")
        self._phase, self._began = name, time.monotonic()
        if self._began >= self.deadline:
            raise DeadlineExceeded("the time for this call is over")
        return self

    def __enter__(self) -> None:
        """Begins the phase, see `phase`."""

    def __exit__(self, *_: TracebackType | object) -> None:
        phase, seconds = self._phase, self._share(self._phase, time.monotonic() - self._began)
        self._spent[phase] = self._spent.get(phase, 0.0) + seconds

    def record(self, phase: str, seconds: float) -> None:
        """Records the time of a phase that a call comes through once, outside `phase`."""
        seconds = self._share(phase, seconds)
        if self._metrics is not None:
            self._metrics.phase(self.call, phase, seconds, len(self._phases) or 1)

    def observe(self) -> None:
        """Counts how long each phase took as a whole, which may have been begun several times."""
        spent, self._spent = self._spent, {}
        if self._metrics is not None:
            for phase, seconds in spent.items():
                self._metrics.phase(self.call, phase, seconds, len(self._phases) or 1)

    def _share(self, phase: str, seconds: float) -> float:
        """Tells callers the time of a phase; of calls that are computed as one, each call's share, which it returns."""
        seconds /= len(self._phases) or 1
        for told in self._phases:
            told[phase] = told.get(phase, 0.0) + seconds
        return seconds

    def looked_up(
        self, generation: Generation, names: tuple[str, ...], columns: Mapping[str, Column], n: int, kind: Kind
    ) -> None:
        """Counts the ids of one lookup of features, as `SeenIds.add` tells."""
        if self._metrics is not None:
            self._metrics.seen.add(generation.model, generation.version, names, columns, n, kind)

    def unknown(self, model: str, feature: str, count: int) -> None:
        """Counts ids that a feature's table does not know."""
        if count and self._metrics is not None:
            self._metrics.unknown_ids(model, feature, count)

    def unknown_contexts(self, model: str, store: str, count: int) -> None:
        """Counts contexts that a store does not hold."""
        if count and self._metrics is not None:
            self._metrics.unknown_contexts(model, store, count)

    def ran(self, model: str, tower: str, part: str, examples: int) -> None:
        """Counts the examples that a part of a tower was run on."""
        if self._metrics is not None:
            self._metrics.part_ran(model, tower, part, examples)

    def computed(self, examples: int, candidates: int = 0) -> None:
        """Counts what the call asked for."""
        if self._metrics is not None:
            self._metrics.computed(self.call, examples, candidates)
