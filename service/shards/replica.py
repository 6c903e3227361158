"""One process that serves a shard, as a router sees it: what it holds, its calls in progress, how
long they take.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Hashable
from typing import Any

import grpc
import numpy as np

from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub
from service.config import ServiceSettings
from service.shards.credentials import ShardCredentials
from service.shards.messages import MESSAGE_LIMITS
from service.shards.outliers import OutlierDetection

Key = tuple[str, int, int]
"""Model, version and fingerprint of a bundle."""
_DESCRIBE_S = 1.5
"""Longer than it takes until TCP repeats a lost SYN for the first time."""
_GRACE_S = 60.0
"""Time that calls in progress get when a connection is replaced."""
_RECENT = 256
_SHARDS_MAX = 9_999
"""Of one bundle: a router looks at each of them at every poll."""
_FRAMING_BYTES = 1 << 20
"""Of a response, beside the rows and candidates in it."""
_PING_MS = 20_000
"""Less often than shards accept pings."""
_PING_TIMEOUT_MS = 5_000


class Replica:
    """A replica of a shard. Belongs to the event loop.

    Attributes:
      address: HOST:PORT.
      shard: which it serves; None: it has not answered yet.
      bundles: what it has loaded.
      problem: why it cannot be called; empty: it can.
      suspect: whether a call has failed to reach it since it was last polled.
      outliers: the outcomes of its calls, and its ejection.
      inflight: calls in progress.
      polled: set once it has been polled.
    """

    def __init__(
        self, address: str, name: str, credentials: ShardCredentials, settings: ServiceSettings
    ) -> None:
        """Prepares a connection.

        Args:
          address: HOST:PORT.
          name: that its certificate is for; empty: the host of its address.
          credentials: of the router.
          settings: of the router.
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
        self._recent = deque[float](maxlen=_RECENT)
        self._responded = -math.inf
        self._closing = set[asyncio.Task[None]]()
        self._connect()

    @property
    def is_well(self) -> bool:
        """Whether calls should be sent to it, rather than to another one."""
        return not (self.problem or self.suspect or self.outliers.problem)

    @property
    def state(self) -> Hashable:
        """What decides whether, and for what, it is called."""
        return self.shard, self.bundles, self.problem, self.suspect

    def _connect(self) -> None:
        """Opens a channel with the credentials of now; it connects at the first call."""
        self._used = self._credentials.channel()
        if self._used is None:
            self._channel = grpc.aio.insecure_channel(self.address, self._options)
        else:
            named = [("grpc.ssl_target_name_override", self._name)] if self._name else []
            self._channel = grpc.aio.secure_channel(
                self.address, self._used, [*self._options, *named]
            )
        self._stub = ShardServiceStub(self._channel)

    def _reconnect(self) -> None:
        """Opens another channel; calls in progress complete on the one before."""
        closing = asyncio.create_task(self._channel.close(_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._connect()

    async def describe(self) -> None:
        """Asks what it holds now; by a new connection if the certificates have changed.

        After a failure, the next call uses a new connection: after a cut, TCP would repeat what was
        lost on the one before only after a multiple of the time that the cut took.
        """
        if self._credentials.channel() is not self._used:
            self._reconnect()
        began = time.perf_counter()
        try:
            description = await self._stub.Describe(
                shard_pb.DescribeRequest(),
                timeout=_DESCRIBE_S,
                metadata=self._credentials.metadata(),
            )
        except grpc.aio.AioRpcError as problem:
            if self._responded > began:
                return  # it is busy, and responds to calls
            self.problem = f"{problem.code().name}: {problem.details()}"
            self._reconnect()
            return
        self.problem = self._mismatch(description)
        self.suspect = False
        if self.problem:
            return
        self.shard = ShardNumber(description.number, description.total)
        self.bundles = frozenset(
            [(each.model, each.version, each.fingerprint) for each in description.bundles]
        )

    def _mismatch(self, description: shard_pb.DescribeResponse) -> str:
        """Returns why a shard and this router do not fit each other; empty: they do."""
        number = description.number
        total = description.total
        if not 1 <= number <= total <= _SHARDS_MAX:
            return f"it describes itself as shard {number}/{total}"
        min_bytes = self._settings.shard_min_bytes
        if description.min_bytes != min_bytes:
            return (
                f"it divides tables of at least {description.min_bytes} bytes, and this router "
                f"{min_bytes}: --shard-min-bytes must be the same"
            )
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
          grpc.aio.AioRpcError: it failed.
        """
        began = time.perf_counter()
        self.inflight += 1
        try:
            timeout = None if math.isinf(timeout_s) else max(0.0, timeout_s)
            answer = await getattr(self._stub, method)(
                request, timeout=timeout, metadata=self._credentials.metadata()
            )
        finally:
            self.inflight -= 1
        self._responded = time.perf_counter()
        self._recent.append(self._responded - began)
        return answer

    def percentile_s(self, percentile: float) -> float:
        """Returns how long the slowest of the recent calls took, but for the slowest 100 -
        percentile %.
        """
        return (
            float(np.percentile(self._recent, percentile))
            if len(self._recent) >= _RECENT // 8
            else math.inf
        )

    async def close(self) -> None:
        """Disconnects."""
        for closing in self._closing:
            closing.cancel()
        await self._channel.close()


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    """Returns the options of a channel. Names and meanings: grpc/impl/channel_arg_names.h."""
    options = {
        "grpc.max_receive_message_length": settings.max_response_bytes + _FRAMING_BYTES,
        "grpc.max_send_message_length": -1,  # shards bound what they accept
        # a restarted shard is reached soon
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 200,
        # else a new channel shares the connection of the one before
        "grpc.use_local_subchannel_pool": 1,
        "grpc.keepalive_time_ms": _PING_MS,
        "grpc.keepalive_timeout_ms": _PING_TIMEOUT_MS,
        # shards are reached directly, whatever proxy the environment names
        "grpc.enable_http_proxy": 0,
    }
    return list(options.items())
