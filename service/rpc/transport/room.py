"""What the connections of one listener share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from service.rpc.transport import frames
from service.rpc.transport.frames import Setting
from service.rpc.transport.limits import Limits
from service.rpc.transport.reading import PAYLOAD_BYTES_MAX
from service.rpc.transport.streams import STREAM_WINDOW_BYTES, UNKNOWN, Method

if TYPE_CHECKING:
    from service.rpc.transport.connection import Connection

CONNECTION_WINDOW_BYTES = 4 << 20


class Room:
    """One listener's connections, and what they take together.

    Attributes:
      connections: that are open.
      greeting: the first frames of this side.
      intake_bytes: of requests that are not whole yet.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], limits: Limits, retry_after_s: float, unknown: Method = UNKNOWN
    ) -> None:
        """Begins with no connection; `unknown` answers what is no method."""
        self.unknown = unknown
        told = {
            Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_FRAME_SIZE: PAYLOAD_BYTES_MAX,
            Setting.MAX_HEADER_LIST_SIZE: limits.metadata_bytes_max,
        }
        self.greeting = frames.settings(told) + frames.credit(0, CONNECTION_WINDOW_BYTES - frames.WINDOW_BYTES)
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
