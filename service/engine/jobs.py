"""One admitted call: what is to be computed, whom to tell, and what it holds until that has really ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from bundle.errors import DigestMismatch, FeatureError, UnknownCandidate
from runtime.errors import ValuesRefused
from service import logs
from service.engine.admission import Permit
from service.engine.finite import NotFinite, sends_numbers
from service.engine.requests import Call, Request
from service.engine.steps import Steps
from service.errors import INTERNAL_SENTENCE, DataLoss, Internal, InvalidArgument, ServiceError
from service.generations.generation import Generation
from service.generations.switch import Lease
from service.settings import ServiceSettings

log = logs.logger(__name__)

Answer = TypeVar("Answer")
Work = Callable[[Generation, Request, ServiceSettings, Steps], Answer]
Told = Callable[[Answer | ServiceError], None]
"""Takes what came of a call, on the event loop; raises nothing."""


@dataclass(eq=False, slots=True)
class Job(Generic[Request, Answer]):
    """A call between its admission and its end.

    Attributes:
      kind: calls of one kind take about equally long.
      candidates: what the call costs, as its request tells.
      told: takes what came of the call; None: somebody was told, or nobody waits any more.
      loop: on which somebody waits.
      leave: takes the job out of wherever it waits.
      expected_s: how long calls of its kind usually take, seconds.
      on_loop, in_thread: whether the event loop, and a compute thread beside it, is called for it.
      late: ends the caller's wait when its time is over.
      took_s: how long computing took, all who helped together, seconds; None: it was not computed to the end.
    """

    work: Work[Request, Answer]
    request: Request
    settings: ServiceSettings
    steps: Steps
    call: Call
    kind: Hashable
    candidates: int
    permit: Permit
    lease: Lease
    told: Told[Answer] | None
    loop: asyncio.AbstractEventLoop
    leave: Callable[[Job[Request, Answer]], None]
    expected_s: float = field(default=0.0, init=False)
    on_loop: bool = field(default=False, init=False)
    in_thread: bool = field(default=True, init=False)
    late: asyncio.TimerHandle | None = field(default=None, init=False)
    took_s: float | None = field(default=None, init=False)
    _outcome: Answer | ServiceError | None = field(default=None, init=False)

    def compute(self) -> None:
        """Computes the answer, in whatever thread, and keeps it, or the failure, until it is told."""
        try:
            self.steps.begun()
            began = time.perf_counter()
            answer = self.work(self.lease.generation, self.request, self.settings, self.steps)
            # What it took alone: when many wait, nobody helps.
            self.took_s = time.perf_counter() - began + self.steps.helped_s
            self.steps.check()
        except ServiceError as problem:
            self._outcome = problem
        except (FeatureError, UnknownCandidate) as problem:
            self._outcome = _caused(InvalidArgument(str(problem)), problem)
        except DigestMismatch as problem:
            self._outcome = _caused(DataLoss(str(problem)), problem)
        except Exception as problem:
            told = _told_of_numbers(problem)
            if told and sends_numbers(self.lease.generation.manifest, self.request):
                self._outcome = _caused(InvalidArgument(told), problem)
                return
            if self.steps.gone:  # no door is left to write the line of this failure
                log.exception("call_failed", extra=logs.fields(call=self.steps.call, request_id=self.call.request_id))
            self._outcome = _caused(Internal(INTERNAL_SENTENCE), problem)
        else:
            self._outcome = answer
        finally:
            self.steps.observe()

    def computed(self, answer: Answer, took_s: float) -> None:
        """Keeps an answer that was computed with those of others."""
        self._outcome, self.took_s = answer, took_s

    def release(self) -> None:
        """Gives back what the call holds."""
        self.lease.release()
        self.permit.release()

    def give_up(self) -> None:
        """Ends a call nobody waits for any more: now if it was not begun, else before its next step. On the loop."""
        if self.told is not None:
            self.told = None
            self.leave(self)

    def tell(self) -> None:
        """Tells whoever still waits what came of it. On the loop."""
        self.settle(cast(Answer | ServiceError, self._outcome))

    def settle(self, outcome: Answer | ServiceError) -> None:
        """Tells whoever still waits of this outcome, whatever may yet come. On the loop."""
        if self.late is not None:
            self.late.cancel()
        told, self.told = self.told, None
        if told is not None:
            told(outcome)


def _caused(told: ServiceError, by: Exception) -> ServiceError:
    told.__cause__ = by
    return told


def _told_of_numbers(problem: Exception) -> str:
    """Returns what is wrong with the numbers that were sent, if a failure may be their fault; else ""."""
    if isinstance(problem, NotFinite):
        return f"{problem} is not finite with the numbers that were sent; smaller ones were expected"
    if isinstance(problem, ValuesRefused):
        return "a tower cannot compute with what was sent; ids that it looks up itself may lie beyond its tables"
    return ""
