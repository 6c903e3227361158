"""One process that serves a shard, as a router sees it: what it holds, its calls in progress, how
long they take.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable
from typing import Any

import grpc

from bundle.tables.shard_number import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub
from service.config import ServiceSettings
from service.shards.credentials import ShardCredentials
from service.shards.messages import MESSAGE_LIMITS
from service.shards.outliers import OutlierDetection

Key = tuple[str, int, int]
"""Model, version and fingerprint of a bundle."""
_DESCRIBE_S = 1.5
"""Timeout of a poll: longer than it takes until TCP repeats a lost SYN for the first time."""
_GRACE_S = 60.0
"""Time that calls in progress get when a connection is replaced."""
_SHARDS_MAX = 9_999
"""Largest number of shards of a bundle: a router looks at each of them at every poll."""
_FRAMING_BYTES = 1 << 20
"""Upper bound of the size of the rest of a response, without rows and candidates."""
_PING_MS = 20_000
"""Time between keepalive pings: longer than the shortest interval that shards accept."""
_PING_TIMEOUT_MS = 5_000
"""Time after which a connection without a response to a ping is closed."""


class Replica:
    """A replica of a shard. Belongs to the event loop.

    Attributes:
      address: The HOST:PORT of the replica.
      shard: The shard that the replica serves; None: it has not responded yet.
      bundles: The bundles that the replica has loaded.
      problem: Why the replica cannot be called; empty: it can.
      suspect: Whether a call has failed to reach the replica since the last poll.
      outliers: The outcomes of calls of the replica, and its ejection.
      inflight: The number of calls in progress.
      polled: An event that is set once it has been polled.
    """

    def __init__(
        self, address: str, name: str, credentials: ShardCredentials, settings: ServiceSettings
    ) -> None:
        """Prepares a connection.

        Args:
          address: The HOST:PORT of the replica.
          name: The name that its certificate must have; empty: the host of its address.
          credentials: The credentials of the router.
          settings: The settings of the router.
        """
        self.address = address
        self.shard: ShardNumber | None = None
        self.bundles = frozenset[Key]()
        self.problem = "it has not responded yet"
        self.suspect = False
        self.outliers = OutlierDetection()
        self.inflight = 0
        self.polled = asyncio.Event()
        self._name = name
        self._credentials = credentials
        self._settings = settings
        self._options = _options(settings)
        self._last_response_s = -math.inf
        self._closing = set[asyncio.Task[None]]()
        self._connect()

    @property
    def is_well(self) -> bool:
        """Whether calls should be sent to this replica, rather than to another one."""
        return not (self.problem or self.suspect or self.outliers.problem)

    @property
    def state(self) -> Hashable:
        """The values that decide whether, and for which bundles, the replica is called."""
        return self.shard, self.bundles, self.problem, self.suspect

    def _connect(self) -> None:
        """Opens a channel with the credentials of now; it connects at the first call."""
        self._channel_credentials = self._credentials.channel()
        if self._channel_credentials is None:
            self._channel = grpc.aio.insecure_channel(self.address, self._options)
        else:
            options: list[tuple[str, int | str]] = [*self._options]
            if self._name:
                options.append(("grpc.ssl_target_name_override", self._name))
            self._channel = grpc.aio.secure_channel(
                self.address, self._channel_credentials, options
            )
        self._stub = ShardServiceStub(self._channel)

    def _reconnect(self) -> None:
        """Opens another channel; calls in progress complete on the one before."""
        # The event loop holds its tasks weakly, so the set keeps them alive.
        closing = asyncio.create_task(self._channel.close(_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._connect()

    async def describe(self) -> None:
        """Requests what the replica holds now, over a new connection if the certificates have
        changed.

        After a failure, the next call uses a new connection: after a cut of the network, TCP would
        repeat lost data on the old one only after a multiple of the time that the cut took.
        """
        if self._credentials.channel() is not self._channel_credentials:
            self._reconnect()
        began = time.perf_counter()
        try:
            description = await self._stub.Describe(
                shard_pb.DescribeRequest(),
                timeout=_DESCRIBE_S,
                metadata=self._credentials.metadata(),
            )
        except grpc.aio.AioRpcError as problem:
            # It has responded to another call since: it is busy rather than gone.
            if self._last_response_s > began:
                return
            self.problem = f"{problem.code().name}: {problem.details()}"
            self._reconnect()
            return

        self.problem = self._mismatch(description)
        self.suspect = False
        if self.problem:
            return
        self.shard = ShardNumber(description.number, description.total)
        self.bundles = frozenset(
            [(bundle.model, bundle.version, bundle.fingerprint) for bundle in description.bundles]
        )

    def _mismatch(self, description: shard_pb.DescribeResponse) -> str:
        """Returns why a shard and this router do not fit each other; empty: they do."""
        number = description.number
        total = description.total
        if not 1 <= number <= total <= _SHARDS_MAX:
            return f"it describes itself as shard {number}/{total}"
        # The minimum size decides which tables are divided at all.
        min_bytes = self._settings.shard_min_bytes
        if description.min_bytes != min_bytes:
            return (
                f"it divides tables of at least {description.min_bytes} bytes, and this router "
                f"{min_bytes}: --shard-min-bytes must be the same"
            )
        # A router checks requests by its own limits. What it admits, every shard must admit.
        for name in MESSAGE_LIMITS:
            limit = getattr(description, name)
            needed = getattr(self._settings, name)
            if limit < needed:
                return (
                    f"its {name} is {limit}, and this router's {needed}: a shard's must be at "
                    "least the router's"
                )
        return ""

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """Calls a method.

        Raises:
          grpc.aio.AioRpcError: The call failed.
        """
        self.inflight += 1
        try:
            # For gRPC, None is a call without a deadline.
            timeout = None if math.isinf(timeout_s) else max(0.0, timeout_s)
            response = await getattr(self._stub, method)(
                request, timeout=timeout, metadata=self._credentials.metadata()
            )
        finally:
            self.inflight -= 1
        # Failed calls are left out: a call that is rejected at once is no fast call.
        self._last_response_s = time.perf_counter()
        return response

    async def close(self) -> None:
        """Disconnects."""
        for closing in self._closing:
            closing.cancel()
        await self._channel.close()


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    """Returns the options of a channel. Names and meanings: grpc/impl/channel_arg_names.h."""
    options = {
        "grpc.max_receive_message_length": settings.max_response_bytes + _FRAMING_BYTES,
        # Unlimited, since shards bound what they accept.
        "grpc.max_send_message_length": -1,
        # With gRPC's default of 1 s and more, requests failed longer after a shard had restarted.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 200,
        # Otherwise a new channel would share the connection of the channel before.
        "grpc.use_local_subchannel_pool": 1,
        "grpc.keepalive_time_ms": _PING_MS,
        "grpc.keepalive_timeout_ms": _PING_TIMEOUT_MS,
        # Shards are reached directly, whatever proxy the environment names.
        "grpc.enable_http_proxy": 0,
    }
    return list(options.items())
