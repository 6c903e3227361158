"""One admitted call: what is to be computed, and what it holds until that has really ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bundle.errors import DigestMismatch, FeatureError, UnknownCandidate
from service import logs
from service.engine.admission import Permit
from service.engine.requests import Call, Request
from service.engine.steps import Steps
from service.errors import INTERNAL_SENTENCE, DataLoss, Internal, InvalidArgument, ServiceError
from service.generations.generation import Generation
from service.generations.switch import Lease
from service.settings import ServiceSettings

log = logs.logger(__name__)

Answer = TypeVar("Answer")
Work = Callable[[Generation, Request, ServiceSettings, Steps], Answer]


@dataclass(eq=False, slots=True)
class Job(Generic[Request, Answer]):
    """A call between its admission and its end.

    Attributes:
      kind: calls of one kind take about equally long.
      answer: what the caller waits for; belongs to the event loop.
      took_s: how long computing took, seconds; None: it was not answered.
    """

    work: Work[Request, Answer]
    request: Request
    settings: ServiceSettings
    steps: Steps
    call: Call
    kind: Hashable
    permit: Permit
    lease: Lease
    answer: asyncio.Future[Answer]
    took_s: float | None = field(default=None, init=False)

    def compute(self) -> Answer:
        """Computes the answer, in whatever thread.

        Raises:
          ServiceError: and nothing else.
        """
        try:
            self.steps.begun()
            began = time.perf_counter()
            answer = self.work(self.lease.generation, self.request, self.settings, self.steps)
            self.took_s = time.perf_counter() - began
        except ServiceError:
            raise
        except (FeatureError, UnknownCandidate) as problem:
            raise InvalidArgument(str(problem)) from problem
        except DigestMismatch as problem:
            raise DataLoss(str(problem)) from problem
        except Exception as problem:
            if self.steps.gone:  # no door is left to write the line of this failure
                log.exception("call_failed", extra=logs.fields(call=self.steps.call, request_id=self.call.request_id))
            raise Internal(INTERNAL_SENTENCE) from problem
        return answer

    def release(self) -> None:
        """Gives back what the call holds."""
        self.lease.release()
        self.permit.release()

    def succeed(self, answer: Answer) -> None:
        """Answers whoever still waits. On the event loop."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, problem: BaseException) -> None:
        """Tells whoever still waits. On the event loop."""
        if not self.answer.done():
            self.answer.set_exception(problem)
