"""What the connections of one listener share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from service.rpc.transport.limits import Limits
from service.rpc.transport.streams import UNKNOWN, Method

if TYPE_CHECKING:
    from service.rpc.transport.connection import Connection


class Room:
    """One listener's connections, and what they take together.

    Attributes:
      connections: that are open.
      intake_bytes: of requests that are not whole yet.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], limits: Limits, retry_after_s: float, unknown: Method = UNKNOWN
    ) -> None:
        """Begins with no connection; `unknown` answers what is no method."""
        self.unknown = unknown
        self.methods, self.limits, self.retry_after_s = methods, limits, retry_after_s
        self.connections: set[Connection] = set()
        self.intake_bytes = 0

    def take_in(self, connection: Connection) -> bool:
        """Adds a connection, in the place of one without a call where there are too many; tells whether it could."""
        if 0 < self.limits.connections_max <= len(self.connections):
            idle = next((each for each in self.connections if not each.has_calls), None)
            if idle is None:
                return False
            self.connections.discard(idle)
            idle.abort()
        self.connections.add(connection)
        return True
