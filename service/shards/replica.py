"""One process that serves a shard, as a router sees it: what it holds, its calls in progress, how
long they take.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub

Key = tuple[str, int, int]
"""Model, version and fingerprint of a bundle."""
Metadata = tuple[tuple[str, str], ...]
_DESCRIBE_S = 2.0
_RECENT = 256
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
        credentials: grpc.ChannelCredentials | None,
        metadata: Callable[[], Metadata],
    ) -> None:
        """Prepares a connection.

        Args:
          name: that its certificate is for; empty: the host of its address.
          credentials: of TLS; None: plain text.
          metadata: returns that of the next call.
        """
        self.address = address
        self.min_bytes = 0
        self.shard: ShardNumber | None = None
        self.bundles = frozenset[Key]()
        self.problem = "it has not responded yet"
        self.inflight = 0
        self._metadata = metadata
        self._recent = deque[float](maxlen=_RECENT)
        named = [("grpc.ssl_target_name_override", name)] if name else []
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, [*_OPTIONS, *named])
        self._stub = ShardServiceStub(self._channel)

    async def describe(self) -> None:
        """Asks what it holds now."""
        try:
            request = shard_pb.DescribeRequest()
            answer = await self._stub.Describe(
                request, timeout=_DESCRIBE_S, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as problem:
            self.problem = f"{problem.code().name}: {problem.details()}"
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
                request, timeout=timeout, metadata=self._metadata()
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
        await self._channel.close()
