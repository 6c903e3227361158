"""What the workers of one service and their parent know of each other: a page of memory with a slot for each worker.

The parent makes it before it forks. A slot is written by its worker, and by the parent while there is no such process;
numbers are aligned words, so that a reader sees the one before or the one after.
"""

from __future__ import annotations

import mmap
from enum import IntEnum

_NUMBERS = 8
_TEXT_BYTES = 192
_SLOT_BYTES = _NUMBERS * 8 + _TEXT_BYTES


class State(IntEnum):
    """How far a worker is. Callers reach it in OPEN and READY."""

    DOWN = 0
    STARTING = 1
    OPEN = 2
    """Its doors are open, but calls are answered NOT_READY."""
    READY = 3
    DRAINING = 4


class Door(IntEnum):
    """What callers connect to."""

    HTTP = 0
    GRPC = 1


class Board:
    """The slots of `workers` workers, shared by every process that is forked from the one that made it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._page = mmap.mmap(-1, workers * _SLOT_BYTES)  # shared and anonymous: it ends with the last process
        self._numbers = memoryview(self._page).cast("q")

    def state(self, worker: int) -> State:
        """Tells how far a worker is."""
        return State(self._numbers[self._at(worker)])

    def problem(self, worker: int) -> str:
        """Tells why callers should not be sent to a worker that is OPEN, shortened to the slot."""
        start = worker * _SLOT_BYTES + _NUMBERS * 8
        return self._page[start : start + _TEXT_BYTES].rstrip(b"\0").decode(errors="ignore")

    def tell(self, worker: int, state: State, problem: str = "") -> bool:
        """Writes how far a worker is, and why it is not READY; returns whether that is news."""
        if (state, problem) == (self.state(worker), self.problem(worker)):
            return False
        start = worker * _SLOT_BYTES + _NUMBERS * 8
        self._page[start : start + _TEXT_BYTES] = problem.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        self._numbers[self._at(worker)] = state
        return True

    def beats(self, worker: int) -> int:
        """Counts the seconds in which a worker's event loop went round."""
        return self._numbers[self._at(worker) + 1]

    def beat(self, worker: int) -> None:
        """Counts one more."""
        self._numbers[self._at(worker) + 1] += 1

    def restarts(self, worker: int) -> int:
        """Counts how often a worker was started again."""
        return self._numbers[self._at(worker) + 2]

    def restarted(self, worker: int) -> None:
        """Counts one more."""
        self._numbers[self._at(worker) + 2] += 1

    def connections(self, worker: int, door: Door) -> int:
        """Tells how many connections of a door a worker holds, as of a moment ago."""
        return self._numbers[self._at(worker) + 3 + door]

    def hold(self, worker: int, door: Door, connections: int) -> None:
        """Writes how many connections of a door a worker holds."""
        self._numbers[self._at(worker) + 3 + door] = connections

    def at_work_beside(self, worker: int) -> int:
        """Tells how many cores the other workers keep at work, as of a moment ago."""
        return sum(self._numbers[5 :: self._at(1)]) - self._numbers[self._at(worker) + 5]

    def keep_at_work(self, worker: int, cores: int) -> None:
        """Writes how many cores a worker keeps at work."""
        self._numbers[self._at(worker) + 5] = cores

    @staticmethod
    def _at(worker: int) -> int:
        return worker * (_SLOT_BYTES // 8)
