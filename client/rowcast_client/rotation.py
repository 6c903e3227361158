"""Which address of a service a call is sent to."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from rowcast_client.errors import NotReady, RowcastError, TlsFailed, Unreachable
from rowcast_client.retries import JITTER
from rowcast_client.transport import Transport

AVOIDED_S = 10.0
"""Time for which an address that failed is used only if all others fail, too."""


class Rotation:
    """The transports of a client, one for each address, which its calls take in turns.

    Attributes:
      transports: All of them, in the order of the addresses.
    """

    def __init__(self, transports: Sequence[Transport]) -> None:
        self.transports = tuple(transports)
        # Clients that start together do not all begin with the same address.
        self._turns = itertools.count(JITTER.randrange(len(self.transports)))
        self._avoided_until_s = dict.fromkeys(self.transports, 0.0)

    def order(self) -> Sequence[Transport]:
        """Returns the transports in the order in which the next call tries them."""
        if len(self.transports) == 1:
            return self.transports
        now_s = time.monotonic()
        avoided = [
            transport for transport in self.transports if self._avoided_until_s[transport] > now_s
        ]
        usable = [transport for transport in self.transports if transport not in avoided]
        # If all failed, all are tried: one of them may work again.
        if not usable:
            return avoided
        first = next(self._turns) % len(usable)
        order = usable[first:] + usable[:first] + avoided
        if self._avoided_until_s[order[0]]:
            # One call finds out whether the address works again; the others avoid it meanwhile.
            self.failed(order[0])
        return order

    def failed(self, transport: Transport) -> None:
        """Has the next calls avoid an address."""
        self._avoided_until_s[transport] = time.monotonic() + AVOIDED_S

    def responded(self, transport: Transport) -> None:
        """Has the next calls use an address again."""
        self._avoided_until_s[transport] = 0.0


def combined_failure(failures: Sequence[RowcastError]) -> RowcastError:
    """Returns the error of a call that failed at each address: that of the only one, or one that
    lists all of them. It is NotReady if a service responded, and not retryable if none is.
    """
    if len(failures) == 1:
        return failures[0]
    reasons = []
    for failure in failures:
        reason = failure.message
        if failure.address not in reason:
            reason = f"{failure.address}: {reason}"
        reasons.append(reason)
    # The first of these kinds that occurs: a service that responded knows most about the failure.
    kinds = {type(failure) for failure in failures}
    kind = next((kind for kind in (NotReady, Unreachable) if kind in kinds), TlsFailed)
    error = kind(f"none of {len(failures)} addresses can be used: {'; '.join(reasons)}")
    error.address = ", ".join(failure.address for failure in failures)
    # The retry waits for the service that is available first.
    waits_s = []
    for failure in failures:
        error.request_id = error.request_id or failure.request_id
        if failure.retry_after_s is not None:
            waits_s.append(failure.retry_after_s)
    error.retry_after_s = min(waits_s, default=None)
    return error
