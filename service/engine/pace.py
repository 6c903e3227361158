"""How long a step of a request takes, by what it took before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.engine.execution import Execution

MARGIN = 2
"""Multiple of the expected time that must remain: that is an average, and the response is still to
be written. A larger margin leaves steps out that would have been in time.
"""
_DECAY = 0.5
"""Share of its estimate that a step is taken to need once it was dropped: an estimate that is too
high does not last. A smaller share tries slow steps again sooner.
"""


@dataclass(frozen=True)
class Pace:
    """How long a step takes, by what it took before for other numbers of units.

    Attributes:
      kind: The kind of the step.
      units: How much it has to do, such as the number of candidates.
    """

    execution: Execution
    kind: tuple[object, ...]
    units: int

    @property
    def expected_s(self) -> float:
        """How long the step is expected to take; 0.0: nothing is known yet."""
        seconds = self.execution.estimates.expected((*self.kind, "seconds"))
        units = self.execution.estimates.expected((*self.kind, "units"))
        if not seconds or not units:
            return 0.0
        return self.units * seconds / units

    @contextmanager
    def measured(self, runs: bool = True) -> Iterator[None]:
        """Measures the block of the `with` statement, if the step runs in it.

        A step that fails, such as by its deadline, would have taken longer than it did.
        """
        began = time.perf_counter()
        at_least_s = self.expected_s
        try:
            yield
            at_least_s = 0.0
        finally:
            if runs and self.units:
                self._observe(max(at_least_s, time.perf_counter() - began))

    def dropped(self) -> None:
        """Notes that the step was left out for want of time."""
        if self.units:
            self._observe(_DECAY * self.expected_s)

    def _observe(self, seconds: float) -> None:
        self.execution.estimates.observe((*self.kind, "seconds"), seconds)
        self.execution.estimates.observe((*self.kind, "units"), float(self.units))
