"""Shards, and routers of them, in the process of the tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.units.service.running import RunningService


class Cluster:
    """A router, and the shards that a file of addresses names."""

    def __init__(self, root: Path, file: Path) -> None:
        self._root = root
        self._file = file
        self._services = ExitStack()
        self._shards: dict[str, RunningService] = {}

    @property
    def addresses(self) -> list[str]:
        """The gRPC addresses of the shards, in the order in which they were added."""
        return [shard.grpc for shard in self._shards.values()]

    def add(self, *numbers: str, shard_min_bytes: int = 1) -> None:
        """Starts shards, and names them to the router instead of those with the same numbers."""
        self.drop(*self._shards.keys() & {*numbers})
        for number in numbers:
            self._shards[number] = RunningService(
                self._root, shard=number, shard_min_bytes=shard_min_bytes
            )
        self._write()

    def start_router(self, **settings: Any) -> RunningService:
        sources = {"shard_addresses": (f"file:{self._file}",), "shard_min_bytes": 1}
        router = RunningService(self._root, **{**sources, **settings})
        self._services.callback(router.close)
        return router

    def drop(self, *numbers: str) -> None:
        """Ends shards while the router still knows of them."""
        for number in numbers:
            self._shards.pop(number).close()

    def close(self) -> None:
        self._services.close()
        self.drop(*list(self._shards))

    def _write(self) -> None:
        self._file.write_text("".join(f"{address}\n" for address in self.addresses))


def response(client: httpx.Client, call: str, body: dict[str, Any]) -> tuple[int, Any]:
    received = client.post(f"/v1/models/movies:{call}", json=body)
    return received.status_code, received.json()
