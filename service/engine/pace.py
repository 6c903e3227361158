"""Which calls are short enough to be computed on the event loop itself; figures in docs/adr/0005 and 0022.

Handing a call to a compute thread and its answer back costs more than computing a short one. How long a kind of call
takes is measured: first in the compute threads, then on the loop, which no call may hold up for long.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Hashable
from enum import Enum, auto
from typing import NamedTuple
from weakref import WeakKeyDictionary

from service.generations.generation import Generation

_CREEP = 1.03
"""A kind takes the least time seen in the compute threads, forgotten by 3 % a call: a thread that waits for others
measures the wait too, and the calls that did not wait are those that tell how long computing takes."""
_ORDINARY = 2
"""A call takes up to so many times the least, as what it needs is in the caches or not."""
_INTERPRETED = 2
"""Kinds up to so many times as long as those that are computed at once are mostly the interpreter's work, too: with one
thread beside the loop they took 0.85 ms of CPU each instead of 0.4, and fewer were answered."""
_NEWS, _DOUBTED = 0.1, 0.98
"""How much what is known of a kind's time follows the newest call, and what is left of the usual one when it refuses a
call."""
_AWAY_MIN, _AWAY_MAX, _AWAY_MORE, _FORGIVEN = 8.0, 4096.0, 2, 0.95
"""Calls that go elsewhere once a kind holds the loop up: twice as many each time, and 5 % less with each call that
did not, so that a kind that is often slow (its rows are read from the disk) is kept off the loop."""


class Where(Enum):
    """Where a call is computed."""

    AT_ONCE = auto()
    """On the loop, before what is in line."""
    LOOP = auto()
    """In line, by the loop: a thread beside it would contend for the interpreter's lock for longer than it computes."""
    ANYWHERE = auto()
    """In line, by a compute thread or the loop."""
    THREAD = auto()
    """In line, by a compute thread."""


class Paces:
    """How long each kind of call takes with each generation. Used on the event loop only."""

    def __init__(self, at_once_s: float, turn_s: float) -> None:
        """Begins with no kind.

        Args:
          at_once_s: longest time that a call may take on the loop before others, seconds; 0: none is computed there.
          turn_s: longest time that a call may take on the loop in its turn, seconds; 0: none is computed there.
        """
        self._at_once_s, self._turn_s = at_once_s, turn_s
        self._kinds: WeakKeyDictionary[Generation, dict[Hashable, _Pace]] = WeakKeyDictionary()
        self._latest: dict[str, dict[Hashable, _Pace]] = {}
        """By model: the kinds of its generation that was asked last."""
        self._faults = _major_faults()

    def where(self, generation: Generation, kind: Hashable) -> Where:
        """Tells where the next call of a kind is to be computed; each call is asked about once."""
        pace = self._known(generation).get(kind)
        if pace is None:
            return Where.THREAD
        seconds, away = pace.least_s * _ORDINARY, pace.away > 0
        pace.away -= away
        if away and (pace.to_threads or seconds > self._turn_s):
            return Where.THREAD
        if seconds <= self._at_once_s and not away:
            return Where.AT_ONCE
        if seconds <= min(self._at_once_s * _INTERPRETED, self._turn_s):
            return Where.LOOP
        return Where.ANYWHERE if seconds <= self._turn_s else Where.THREAD

    def _known(self, generation: Generation) -> dict[Hashable, _Pace]:
        """Returns the kinds of a generation. A new one begins with what calls of the one before it took: to learn that
        anew in the threads, under load, takes long, and it answers fewer calls until then."""
        kinds = self._kinds.get(generation)
        if kinds is None:
            before = self._latest.get(generation.model, {})
            kinds = self._kinds[generation] = {kind: _Pace(pace.least_s, pace.usual_s) for kind, pace in before.items()}
            self._latest[generation.model] = kinds
        return kinds

    def computed(self, generation: Generation, kind: Hashable, seconds: float) -> None:
        """Tells how long a call that was answered took in a compute thread."""
        pace = self._known(generation).setdefault(kind, _Pace())
        pace.least_s = min(seconds, pace.least_s * _CREEP)
        pace.usual_s += (seconds - pace.usual_s) * (_NEWS if pace.usual_s else 1)

    def usual_s(self, generation: Generation, kind: Hashable) -> float:
        """Returns how long a call of a kind keeps a compute thread, waits for the core included; 0: not known yet."""
        pace = self._known(generation).get(kind)
        return 0.0 if pace is None else pace.usual_s

    def doubted(self, generation: Generation, kind: Hashable) -> None:
        """Tells that a call was refused for how long its kind takes: were that wrong, none would ever show it."""
        self._kinds[generation][kind].usual_s *= _DOUBTED

    def held_up(self, generation: Generation, kind: Hashable, since: Began, where: Where, calls: int = 1) -> None:
        """Tells since when some calls, answered or not, were computed on the loop; they have just ended.

        Blamed is what read from the disk, and a kind whose calls of late took too long altogether: on a core that is
        slow for a moment some calls always do, and others of their kind, sent away, would wait behind later ones.
        """
        pace = self._kinds[generation][kind]
        limit_s = self._at_once_s if where is Where.AT_ONCE else self._turn_s
        read = time.perf_counter() - since.clock_s > limit_s * calls and self._read_from_disk()
        pace.on_loop_s = pace.on_loop_s or pace.least_s
        pace.on_loop_s += ((time.thread_time() - since.cpu_s) / calls - pace.on_loop_s) * _NEWS
        if not read and pace.on_loop_s <= limit_s:
            pace.next_away = max(_AWAY_MIN, pace.next_away * _FORGIVEN)
            return
        pace.on_loop_s = min(pace.on_loop_s, limit_s)
        # What was only too long to go before others is cheapest on the loop still, in its turn.
        to_threads = read or where is not Where.AT_ONCE
        if pace.away and to_threads <= pace.to_threads:
            return  # it was sent here before its kind was sent away: several that wait at once are no several failures
        pace.away, pace.to_threads = int(pace.next_away), to_threads
        pace.next_away = min(_AWAY_MAX, pace.next_away * _AWAY_MORE)

    def _read_from_disk(self) -> bool:
        """Whether the loop waited for the disk since this was asked last."""
        faults, self._faults = self._faults, _major_faults()
        return self._faults > faults


class Began(NamedTuple):
    """An instant on the clock, and on that of the thread's own computing; seconds."""

    clock_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Began:
        """Takes the time."""
        return cls(time.perf_counter(), time.thread_time())


class _Pace:
    __slots__ = ("away", "least_s", "next_away", "on_loop_s", "to_threads", "usual_s")

    def __init__(self, least_s: float = float("inf"), usual_s: float = 0.0) -> None:
        self.least_s, self.usual_s, self.on_loop_s = least_s, usual_s, 0.0
        self.away, self.next_away = 0, _AWAY_MIN
        self.to_threads = False


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
