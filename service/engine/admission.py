"""Permits: so many calls at once, one more is refused at once. Nothing ever waits here."""

from __future__ import annotations

import threading
from collections.abc import Callable

from service.errors import NotReady, Overloaded


class Permit:
    """One call's place among those in flight; given back once, however often it is released."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        """Holds what gives it back."""
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Gives the permit back."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()


class Admission:
    """Counts the calls in flight. Safe to call from any thread."""

    def __init__(self, in_flight_max: int, retry_after_s: float) -> None:
        """Begins with no call in flight."""
        self._in_flight_max, self._retry_after_s = in_flight_max, retry_after_s
        self._changed = threading.Condition(threading.Lock())
        self._in_flight = 0
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Calls admitted and not yet ended."""
        return self._in_flight

    @property
    def draining(self) -> bool:
        """Whether every new call is refused because the service is going down."""
        return self._draining

    def admit(self) -> Permit:
        """Takes a permit.

        Raises:
          Overloaded: none is free; carries retry-after.
          NotReady: the service is draining.
        """
        with self._changed:
            if self._draining:
                raise NotReady("the service is going down")
            if self._in_flight >= self._in_flight_max:
                raise Overloaded(
                    f"{self._in_flight_max} calls are in flight, no more are admitted at once", self._retry_after_s
                )
            self._in_flight += 1
        return Permit(self._release)

    def _release(self) -> None:
        with self._changed:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._changed.notify_all()

    def drain(self) -> None:
        """Refuses every new call from now on; it is a latch."""
        with self._changed:
            self._draining = True

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits, in a thread that may block, until no call is in flight; tells whether that came true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._in_flight == 0, timeout_s)
