"""Retries of calls: only after errors that may pass, and never beyond the deadline.

Every call only reads, so that sending it twice does no harm. With Overloaded and NotReady, the
service states that a retry may succeed; with Unreachable, there was no response.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import SystemRandom
from typing import Any

from tenacity import (
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
)

from rowcast_client.errors import InvalidArgument, RowcastError

JITTER = SystemRandom()  # processes forked from one parent do not wait alike


class Deadline:
    """The end of the time given to one call, all its attempts together.

    Attributes:
      earlier_failure: The message of the latest attempt that failed before the end; "": none did.
    """

    def __init__(self, timeout_s: float) -> None:
        if (
            isinstance(timeout_s, bool)
            or not isinstance(timeout_s, (int, float))
            or not 0 < timeout_s < float("inf")
        ):
            raise InvalidArgument(
                f"timeout_s is {timeout_s!r}: expected a positive number of seconds"
            )
        self.timeout_s = float(timeout_s)
        self.earlier_failure = ""
        self._end = time.monotonic() + self.timeout_s

    def remaining_s(self) -> float:
        """Seconds left; a millisecond when the time is over, so that the attempt ends with the
        deadline's own error.
        """
        return max(self._end - time.monotonic(), 0.001)

    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end


@dataclass(frozen=True)
class Retries:
    """How often and how patiently a call is tried again.

    Attributes:
      attempts_max: tries in all; 1: never again. The default lasts about five seconds, in which a
        service restarts.
      backoff_s: longest wait before the second try; doubled for each further one. A random part of
        it is waited, so that callers rejected together do not come back together.
      backoff_max_s: longest wait, unless the service requires a longer one.
    """

    attempts_max: int = 8
    backoff_s: float = 0.1
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.backoff_s < 0 or self.backoff_max_s < 0:
            raise InvalidArgument(f"{self}: expected at least one attempt and no negative wait")

    def rules(self, deadline: Deadline) -> dict[str, Any]:
        """The rules for what is left of one call, as arguments of tenacity's Retrying and
        AsyncRetrying.

        A try that would begin after the deadline is not waited for: the last failure is raised at
        once.
        """
        return {
            "retry": retry_if_exception(
                lambda error: isinstance(error, RowcastError) and error.retryable
            ),
            "wait": self.wait_s,
            "stop": stop_any(
                stop_after_attempt(self.attempts_max), stop_before_delay(deadline.remaining_s())
            ),
            "reraise": True,
        }

    def wait_s(self, state: RetryCallState) -> float:
        """Seconds until the next try: what the service requires and up to a tenth more, else a
        random backoff.
        """
        error = state.outcome.exception() if state.outcome is not None else None
        required_s = error.retry_after_s if isinstance(error, RowcastError) else None
        if required_s is not None:
            return required_s * JITTER.uniform(1.0, 1.1)
        longest_s = min(self.backoff_max_s, self.backoff_s * 2 ** (state.attempt_number - 1))
        return JITTER.uniform(longest_s / 2, longest_s)
