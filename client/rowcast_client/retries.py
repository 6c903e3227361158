"""Retries of calls: only after errors that may pass, and never beyond the deadline.

A call that is sent twice has the effect of one. With Overloaded and NotReady, the service states
that a retry may succeed; with Unreachable, there was no response.

The retry policy of gRPC would not do: it ends after five attempts, about 1.5 s, in which a service
does not restart; it does not read `retry-after`; and it is not there over HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import SystemRandom

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
      attempts_max: The maximum number of attempts, each at the addresses of the client in turn
        until one responds; 1: no retry. The default lasts about five seconds, in which a service
        restarts.
      backoff_s: The longest wait before the second attempt; doubled for each further one. The wait
        is random, from half of it, so that callers rejected together do not come back together.
      backoff_max_s: The longest wait, unless the service requires a longer one.
    """

    attempts_max: int = 8
    backoff_s: float = 0.1
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.backoff_s < 0 or self.backoff_max_s < 0:
            raise InvalidArgument(f"{self}: expected at least one attempt and no negative wait")

    def wait_s(self, failure: RowcastError, attempt: int, deadline: Deadline) -> float:
        """Returns the seconds until the next attempt: what the service requires and up to a tenth
        more, else a random backoff.

        Args:
          failure: The error of the latest attempt.
          attempt: The number of attempts so far.
          deadline: The deadline of the call.

        Raises:
          RowcastError: The failure, if another attempt would not help, is not permitted, or would
            begin after the deadline.
        """
        if not failure.retryable or attempt >= self.attempts_max:
            raise failure
        if failure.retry_after_s is not None:
            # A little later than required, since all callers that were rejected got the same time.
            wait_s = failure.retry_after_s * JITTER.uniform(1.0, 1.1)
        else:
            longest_s = min(self.backoff_max_s, self.backoff_s * 2 ** (attempt - 1))
            wait_s = JITTER.uniform(longest_s / 2, longest_s)
        # The failure says more than a deadline that passed while waiting.
        if wait_s >= deadline.remaining_s():
            raise failure
        return wait_s
