"""All connections of the HTTP door together: bounded in number, and in answers that callers have not read."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from service.settings import ServiceSettings


@dataclass(frozen=True)
class Patience:
    """How long a connection may take, and how slow it may be.

    Attributes:
      head_s: from the first byte of a request to the end of its headers, and for TLS' handshake, seconds.
      idle_s: without a request, seconds.
      age_s: until it is closed behind an answer, seconds; 0: never.
      grace_s: before slowness counts, and between two looks at it, seconds.
      bytes_per_s_min: an answer is read at.
    """

    head_s: float = 10.0
    idle_s: float = 75.0
    age_s: float = 0.0
    grace_s: float = 5.0
    bytes_per_s_min: int = 16 << 10

    def some_age_s(self) -> float:
        """Returns how old one connection may become: not all the same, though they may all have come at once."""
        return self.age_s * random.uniform(0.9, 1.1) if self.age_s else math.inf  # noqa: S311


class Member(Protocol):
    """A connection, as the crowd knows it."""

    def cut(self, reason: str) -> None:
        """Ends at once, whatever is on its way."""


class Crowd:
    """Knows which connections wait for a request, and whose callers do not read. Belongs to one event loop."""

    def __init__(self, connections_max: int, unread_bytes_max: int) -> None:
        self._connections_max, self._unread_bytes_max = connections_max, unread_bytes_max
        self._waiting: dict[Member, None] = {}
        self._unread: dict[Member, int] = {}
        self._unread_bytes = 0
        self.count = 0
        """Connections that are open."""
        self.leaving = False
        """Whether each is to be closed behind its next answer."""

    def join(self, member: Member) -> bool:
        """Counts a connection in; at the limit the one that has waited longest for a request makes room.

        Returns:
          Whether there is room: where every other connection has a call, there is none.
        """
        self.count += 1
        room = self.count <= self._connections_max
        if not room and self._waiting:
            longest = next(iter(self._waiting))
            self.works(longest)
            longest.cut("room")
            room = True
        if room:
            self._waiting[member] = None
        return room

    def leave(self, member: Member) -> None:
        """Counts a connection out that joined."""
        self.count -= 1
        self.works(member)
        self.reads(member)

    def waits(self, member: Member) -> None:
        """A connection has no request any more: from now on it may be asked to make room."""
        self._waiting[member] = None

    def worked(self, member: Member) -> None:
        """A connection had a request, and waits for the next one."""
        self._waiting.pop(member, None)
        self._waiting[member] = None

    def works(self, member: Member) -> None:
        """A connection has a whole head: it is left alone."""
        self._waiting.pop(member, None)

    def stalls(self, member: Member, unread_bytes: int) -> None:
        """A connection holds bytes that its caller does not read; where all hold too many, the oldest such is cut."""
        self.reads(member)
        self._unread[member] = unread_bytes
        self._unread_bytes += unread_bytes
        while self._unread_bytes > self._unread_bytes_max and len(self._unread) > 1:
            longest = next(iter(self._unread))
            self.reads(longest)
            longest.cut("unread")

    def reads(self, member: Member) -> None:
        """A connection's caller reads again, or is gone."""
        self._unread_bytes -= self._unread.pop(member, 0)


def patience_of(settings: ServiceSettings) -> Patience:
    """Returns what the settings say of a connection's time."""
    return Patience(idle_s=settings.idle_s, age_s=settings.connection_age_s, bytes_per_s_min=settings.bytes_per_s_min)
