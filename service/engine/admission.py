"""Permits: so many calls and candidates at once, what is more is refused at once. Nothing ever waits here."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.errors import NotReady, Overloaded

_LOOK_EVERY_S = 0.005


class Admission:
    """Counts the calls in flight and their candidates. Belongs to one event loop, but for `wait_idle`."""

    def __init__(self, calls_max: int, candidates_max: int, retry_after_s: Callable[[], float]) -> None:
        """Begins with no call in flight.

        Args:
          calls_max: calls at once.
          candidates_max: candidates of all calls at once; a call alone may have more.
          retry_after_s: tells when one that is refused had better come again, seconds.
        """
        self._calls_max, self._candidates_max, self._retry_after_s = calls_max, candidates_max, retry_after_s
        self._calls = self._candidates = 0
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Calls admitted and not yet ended."""
        return self._calls

    @property
    def candidates(self) -> int:
        """Candidates of these calls."""
        return self._candidates

    @property
    def draining(self) -> bool:
        """Whether every new call is refused because the service is going down."""
        return self._draining

    @property
    def left(self) -> int:
        """Calls that would be admitted now."""
        return self._calls_max - self._calls

    def full(self) -> Overloaded | None:
        """Returns why a call would be refused now; None: it would not."""
        if self._calls < self._calls_max:
            return None
        told = f"{self._calls_max} calls are in flight, no more are admitted at once"
        return Overloaded(told, self._retry_after_s(), "calls")

    def admit(self, candidates: int = 0) -> Permit:
        """Takes a permit.

        Args:
          candidates: of the call.

        Raises:
          Overloaded: none is free; carries retry-after.
          NotReady: the service is draining.
        """
        if self._draining:
            raise NotReady("the service is going down")
        if (full := self.full()) is not None:
            raise full
        if self._calls and self._candidates + candidates > self._candidates_max:
            told = (
                f"calls with {self._candidates} candidates are in flight, {candidates} more would be over "
                f"{self._candidates_max}"
            )
            raise Overloaded(told, self._retry_after_s(), "candidates")
        self._calls += 1
        self._candidates += candidates
        return Permit(self, candidates)

    def give_back(self, candidates: int) -> None:
        """Ends a call; called by its permit."""
        self._calls -= 1
        self._candidates -= candidates

    def drain(self) -> None:
        """Refuses every new call from now on; it is a latch."""
        self._draining = True

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits, in a thread that may block, until no call is in flight; tells whether that came true in time."""
        end = time.monotonic() + timeout_s
        while self._calls:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True


class Permit:
    """One call's place among those in flight; given back once, however often it is released."""

    __slots__ = ("_admission", "_candidates")

    def __init__(self, admission: Admission, candidates: int) -> None:
        """Holds where it is to be given back."""
        self._admission: Admission | None = admission
        self._candidates = candidates

    def release(self) -> None:
        """Gives the permit back."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.give_back(self._candidates)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()
