"""Which of the machine's cores compute calls: those of this process, and those of the other workers of the service."""

from __future__ import annotations

from collections.abc import Callable


class Occupancy:
    """Counts cores at work. What the others told is of a moment ago: a wrong number costs time, never an answer.

    Attributes:
      cores: that all workers together may use.
    """

    def __init__(
        self, cores: int, tell: Callable[[int], None] | None = None, others: Callable[[], int] | None = None
    ) -> None:
        """Begins with none at work here.

        Args:
          cores: that all workers together may use.
          tell: tells the other workers how many this one keeps at work; None: there are no others.
          others: how many the others keep at work; None: there are no others.
        """
        self.cores, self._own = cores, 0
        self._tell, self._others = tell, others

    def idle_beside(self, own: int) -> int:
        """Tells how many cores nobody keeps at work if this process keeps so many; below 0: more is computed at once
        than there are cores."""
        return self.cores - own - (0 if self._others is None else self._others())

    def keep(self, own: int) -> None:
        """Tells how many this process keeps at work from now on."""
        if own != self._own:
            self._own = own
            if self._tell is not None:
                self._tell(own)
