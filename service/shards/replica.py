"""One process that serves a shard, as a router sees it: what it holds, its calls in progress, how
long they take.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Any

import grpc
import numpy as np

from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub
from service.shards.credentials import ShardCredentials

Key = tuple[str, int, int]
"""Model, version and fingerprint of a bundle."""
_DESCRIBE_S = 2.0
_GRACE_S = 60.0
"""Time that calls in progress get when certificates are replaced."""
_RECENT = 256
_SHARDS_MAX = 9_999
"""Of one bundle: a router looks at each of them at every poll."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted shard is reached soon
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Replica:
    """A replica of a shard. Belongs to the event loop.

    Attributes:
      shard: which it serves; None: it has not answered yet.
      min_bytes: of the tables that it shards.
      bundles: what it has loaded.
      problem: why it cannot be called; empty: it can.
      inflight: calls in progress.
    """

    def __init__(
        self,
        address: str,
        name: str,
        credentials: ShardCredentials,
    ) -> None:
        """Prepares a connection.

        Args:
          address: HOST:PORT.
          name: that its certificate is for; empty: the host of its address.
          credentials: of the router.
        """
        self.address = address
        self.min_bytes = 0
        self.shard: ShardNumber | None = None
        self.bundles = frozenset[Key]()
        self.problem = "it has not responded yet"
        self.inflight = 0
        self._name = name
        self._credentials = credentials
        self._recent = deque[float](maxlen=_RECENT)
        self._closing = set[asyncio.Task[None]]()
        self._connect()

    def _connect(self) -> None:
        """Opens a channel with the credentials of now; it connects at the first call."""
        self._used = self._credentials.channel()
        if self._used is None:
            self._channel = grpc.aio.insecure_channel(self.address, _OPTIONS)
        else:
            named = [("grpc.ssl_target_name_override", self._name)] if self._name else []
            self._channel = grpc.aio.secure_channel(self.address, self._used, [*_OPTIONS, *named])
        self._stub = ShardServiceStub(self._channel)

    def _reconnect(self) -> None:
        """Opens another channel; calls in progress complete on the one before."""
        closing = asyncio.create_task(self._channel.close(_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._connect()

    async def describe(self) -> None:
        """Asks what it holds now; by a new connection if the certificates have changed."""
        if self._credentials.channel() is not self._used:
            self._reconnect()
        try:
            request = shard_pb.DescribeRequest()
            answer = await self._stub.Describe(
                request, timeout=_DESCRIBE_S, metadata=self._credentials.metadata()
            )
        except grpc.aio.AioRpcError as problem:
            self.problem = f"{problem.code().name}: {problem.details()}"
            return
        if not 1 <= answer.number <= answer.total <= _SHARDS_MAX:
            self.problem = f"it describes itself as shard {answer.number}/{answer.total}"
            return
        self.shard = ShardNumber(answer.number, answer.total)
        self.min_bytes = answer.min_bytes
        self.bundles = frozenset(
            [(each.model, each.version, each.fingerprint) for each in answer.bundles]
        )
        self.problem = ""

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
        self._recent.append(time.perf_counter() - began)
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
