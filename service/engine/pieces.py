"""A call's work in pieces: whoever computes the call takes one after the other, and threads that are idle help.

Nothing is dealt out beforehand: a helper that comes late, is called away or is slow leaves more to the others, and the
call waits for no more than the pieces that are being computed when none is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Helpers(Protocol):
    """Who may be called to a call's pieces, from any thread."""

    @property
    def piece_s(self) -> float:
        """About how long a piece is to take, seconds; 0: nothing is divided."""

    def idle(self) -> bool:
        """Whether anyone would come now."""

    def call(self, pieces: Pieces) -> None:
        """Calls as many as are idle and find a piece left; returns at once."""


class Pieces:
    """The pieces of one call, each computed once, in whatever thread takes it. Safe to call from any thread."""

    def __init__(self, count: int, compute: Callable[[int], None]) -> None:
        """Begins with all of them left.

        Args:
          count: of pieces.
          compute: computes the i-th, in any thread; what it raises ends the others.
        """
        self._lock, self._idle = threading.Lock(), threading.Event()
        self._count, self._compute = count, compute
        self._next = self._helping = 0
        self._failure: Exception | None = None
        self._helped_s = 0.0

    @property
    def left(self) -> int:
        """Pieces that nobody has taken."""
        return self._count - self._next

    def run(self, helpers: Helpers) -> float:
        """Has all pieces computed, the calling thread among those who do; none is being computed when it returns.

        Returns:
          Seconds that helpers computed beyond those that the calling thread waited for the last of them.
        Raises:
          Exception: what the first piece that failed raised.
        """
        try:
            while (at := self._take(0)) >= 0:
                if self.left:
                    helpers.call(self)
                self._compute(at)
        except Exception as problem:  # noqa: BLE001 - raised below, once nobody computes any more
            self._failed(problem)
        began = time.perf_counter()
        with self._lock:
            last = self._helping == 0
        if not last:
            self._idle.wait()
        if self._failure is not None:
            raise self._failure
        return self._helped_s - (time.perf_counter() - began)

    def help(self, goes_on: Callable[[], bool]) -> None:
        """Computes pieces for as long as there are any and `goes_on` says so, asked after each."""
        while (at := self._take(1)) >= 0:
            began = time.perf_counter()
            try:
                self._compute(at)
            except Exception as problem:  # noqa: BLE001 - raised by `run`
                self._failed(problem)
            with self._lock:
                self._helping -= 1
                self._helped_s += time.perf_counter() - began
                last = self._helping == 0 and self._next == self._count
            if last:
                self._idle.set()
            if not goes_on():
                return

    def _take(self, helping: int) -> int:
        """Returns the next piece, -1: none is left."""
        with self._lock:
            at = self._next
            if at == self._count:
                return -1
            self._next += 1
            self._helping += helping
            return at

    def _failed(self, problem: Exception) -> None:
        with self._lock:
            self._failure = self._failure or problem
            self._next = self._count
