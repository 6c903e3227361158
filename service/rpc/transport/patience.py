"""How long one peer is waited for."""

from __future__ import annotations

from random import random

from service.rpc.transport.limits import Limits

PARTING_S_MAX = 2.0
"""For a peer to close its side once this one is closed."""


class Patience:
    """What a connection knows of time; all instants are of `time.monotonic()`.

    Attributes:
      heard: when the peer sent something last.
      idle_since: when it had a call last.
      parting_since: when this side was closed; None: it is not.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        """Begins with a connection."""
        self._limits, self._made = limits, now
        self.heard = self.idle_since = self._moved_at = now
        self.parting_since: float | None = None
        self._age_s = limits.age_s * (0.9 + 0.2 * random())  # noqa: S311 - so that not all leave at once
        self._asked_at: float | None = None
        self._moved_bytes = 0

    def over(self, now: float, settled: bool, unread: bool, moved_bytes: int) -> bool:
        """Tells whether the connection is to be cut.

        Args:
          settled: whether it speaks HTTP/2.
          unread: whether the peer has left something unread.
          moved_bytes: that were sent so far.
        """
        limits = self._limits
        if self.parting_since is not None:
            return now - self.parting_since > PARTING_S_MAX
        if not unread or moved_bytes != self._moved_bytes:
            self._moved_bytes, self._moved_at = moved_bytes, now
        silent = self._asked_at is not None and self.heard <= self._asked_at < now - limits.silence_s
        return silent or now - self._moved_at > limits.stall_s or (not settled and now - self._made > limits.preface_s)

    def spent(self, now: float, calls: bool) -> bool:
        """Tells whether the peer had better make another connection, or none."""
        idle = not calls and now - self.idle_since > self._limits.idle_s
        return idle or 0 < self._age_s < now - self._made

    def wonders(self, now: float) -> bool:
        """Tells whether the peer is to be asked now whether it is still there."""
        if now - self.heard <= self._limits.silence_s or (self._asked_at is not None and self._asked_at >= self.heard):
            return False
        self._asked_at = now
        return True

    def moved(self, now: float) -> None:
        """Tells that the peer reads again."""
        self._moved_at = now
