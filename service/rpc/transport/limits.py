"""What one peer may take: of streams, bytes and time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of every connection of one listener.

    Attributes:
      streams_max: calls at once on one connection; more are refused before they are looked at, to be sent again.
      connections_max: at once; for one more, one without a call is closed, or else that one. 0: any number.
      message_bytes_max: of one request, as sent and as decompressed.
      intake_bytes_max: of all requests that are not whole yet, of every connection together.
      metadata_bytes_max: of one call's headers as sent; a connection whose headers unpack to four times that ends.
      receive_s: from a call's headers to the end of its request.
      preface_s: from the connection to the first bytes of HTTP/2.
      idle_s: without a call, until the connection is given up.
      age_s: of a connection, until its caller is asked to make a new one, a tenth more or less; 0: never.
      silence_s: with a call, until the peer is asked whether it is still there; and that long for it to answer.
      stall_s: that a peer may leave answers unread.
      unread_bytes_max: of answers that are not read yet, of every connection together; beyond it the peer with the most
        is left.
    """

    streams_max: int = 1_000
    connections_max: int = 0
    message_bytes_max: int = 16 << 20
    intake_bytes_max: int = 1 << 30
    metadata_bytes_max: int = 16 << 10
    receive_s: float = 10.0
    preface_s: float = 10.0
    idle_s: float = 75.0
    age_s: float = 0.0
    silence_s: float = 30.0
    stall_s: float = 20.0
    unread_bytes_max: int = 256 << 20
