"""Compares a router with shards and one process that holds everything, by random requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.bundles.small import USERS, write_small_bundle
from tests.units.service.running import RunningService

SIZE = 8000
LIMITS = {
    "max_k": 60,
    "max_candidates": 300,
    "max_queries": 4,
    "max_values": 9000,
    # Small messages, so that large reads and searches take several.
    "max_request_bytes": 64 << 10,
    "max_response_bytes": 64 << 10,
}
IDS = [1000 + 7 * number for number in range(SIZE)]
GENRES = ["comedy", "drama", "action", "horror", "other", "unheard of"]
STUDIOS = ["studio 0", "studio 1", "studio 2", "studio 9"]
CALLERS = 4
Services = tuple[RunningService, RunningService]
"""A router with three shards, and one process that holds everything."""


@contextmanager
def serving(
    root: Path, towers: Path, settings: Mapping[str, Any] | None = None, **index: Any
) -> Iterator[Services]:
    """Starts services over a bundle with an index in four partitions.

    Args:
      root: The root of the bundle.
      towers: The directory of the compiled towers.
      settings: Further settings of the router, and of the process that holds everything.
      index: The options of the bundle.
    """
    write_small_bundle(
        root, towers, users=True, parts=True, lists=True, size=SIZE, partitions=4, keep=50, **index
    )
    with ExitStack() as started:

        def start(**settings: Any) -> RunningService:
            service = RunningService(root, **LIMITS, **settings)
            started.callback(service.close)
            return service

        shards = [start(shard=f"{number}/3", shard_min_bytes=1) for number in (1, 2, 3)]
        addresses = tuple([shard.grpc for shard in shards])
        further = settings or {}
        router = start(shard_addresses=addresses, shard_min_bytes=1, **further)
        yield router, start(**further)


class RandomRequests:
    """Draws requests of all calls, some of them beyond a limit."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def draw(self) -> tuple[str, dict[str, Any]]:
        """Returns a call and its body."""
        kind = self._number(0, 10)
        if kind < 5:
            return "retrieve", self._retrieval()
        if kind < 8:
            body = {**self._selection(), **self._contexts()}
            if self._chance(0.4):
                body["sources"] = [self._source(number) for number in range(self._number(1, 4))]
            if self._chance(0.3):
                body["skip_stage"] = True
            elif self._chance(0.3):
                body["keep"] = self._number(0, 90)
            return "recommend", body
        if kind < 9:
            return "rank", {**self._context(), **self._examples("candidate_ids", 350)}
        if self._chance(0.5):
            return "lookup", {"feature": "movie", **self._examples("ids", 700)}
        ids = [self._number(-1, USERS + 2) for _ in range(self._number(1, 700))]
        return "lookup", {"feature": "user", "ids": ids}

    def _number(self, first: int, end: int) -> int:
        return int(self._random.integers(first, end))

    def _chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _ids(self, fewest: int, end: int) -> list[int]:
        count = self._number(fewest, end)
        return [IDS[self._number(0, SIZE)] for _ in range(count)]

    def _examples(self, name: str, end: int) -> dict[str, Any]:
        """Returns ids as a field. Some of them may not exist, and are skipped then."""
        ids = self._ids(1, end)
        if not self._chance(0.4):
            return {name: ids}
        gone = [self._number(0, 1000) for _ in range(self._number(0, 3))]
        return {name: [*ids[self._number(0, 2) :], *gone], "not_found": "skip"}

    def _context(self) -> dict[str, Any]:
        context: dict[str, Any] = {"user": self._number(0, USERS)}
        if self._chance(0.5):
            context["history"] = self._ids(0, 12)
        if self._chance(0.2):
            context["city"] = "oslo"
        return {"context": context}

    def _contexts(self) -> dict[str, Any]:
        if self._chance(0.7):
            return self._context()
        requests = []
        for _ in range(self._number(1, 6)):
            request = self._context()
            if self._chance(0.3):
                request["exclude_ids"] = self._ids(0, 9)
            requests.append(request)
        return {"requests": requests}

    def _retrieval(self) -> dict[str, Any]:
        body = self._selection()
        if self._chance(0.3):
            body["exact"] = True
        query = self._number(0, 3)
        if query == 0:
            return body | self._contexts()
        if query == 1:
            return body | self._examples("ids", 6)
        vectors = self._random.normal(size=(self._number(1, 6), 8)).astype(np.float32)
        return body | {"vectors": vectors.tolist()}

    def _selection(self) -> dict[str, Any]:
        body: dict[str, Any] = {"k": self._number(0, 64)}
        if self._chance(0.4):
            body["crowding"] = {self._pick(["studio", "classic", "year"]): self._number(1, 4)}
        if self._chance(0.3):
            body["diversity"] = round(float(self._random.random()), 2)
        if self._chance(0.2):
            body["pool_size"] = self._number(1, 320)
            if self._chance(0.5):
                body["offset"] = self._number(0, 80)
        if self._chance(0.2):
            body["min_score"] = float(self._number(-3, 3))
        if self._chance(0.3):
            body["exclude_ids"] = self._ids(0, 40)
        if self._chance(0.2):
            body["negative_ids"] = self._ids(0, 6)
        if self._chance(0.4):
            body["filter"] = self._filter()
        if self._chance(0.3):
            body["attributes"] = ["title", "year"]
        if self._chance(0.1):
            body["formula"] = "score + rating / 100"
        return body

    def _source(self, number: int) -> dict[str, Any]:
        source: dict[str, Any] = {"name": f"source {number}", "fallback": self._chance(0.2)}
        if self._chance(0.5):
            return source | {"index": "movies", "pool_size": self._number(0, 60)}
        if self._chance(0.4):
            return source | {"list": self._pick(["popular", "new"])}
        return source | {"ids": self._ids(0, 30), "max_count": self._number(0, 9)}

    def _filter(self) -> dict[str, Any]:
        conditions: list[dict[str, Any]] = [
            {"year": {"ge": 1990 + self._number(0, SIZE)}},
            {"year": {"lt": 1990 + self._number(0, SIZE)}},
            {"genres": {"allow": [self._pick(GENRES)]}},
            {"studio": {"deny": [self._pick(STUDIOS)]}},
            {"classic": {"allow": [self._chance(0.5)]}},
            {"latitude": {"is_null": self._chance(0.5)}},
        ]
        chosen = [self._pick(conditions) for _ in range(2)]
        return {self._pick(["all", "any", "none"]): chosen}

    def _pick(self, values: list[Any]) -> Any:
        return values[self._number(0, len(values))]


def response(client: httpx.Client, call: str, body: dict[str, Any]) -> tuple[int, Any]:
    response = client.post(f"/v1/models/movies:{call}", json=body)
    content = response.json()
    content.get("error", {}).pop("request_id", None)
    return response.status_code, content


def differences(
    services: Services,
    seed: int,
    count: int,
    compared: Callable[[tuple[int, Any]], Any],
    drawing: type[RandomRequests] = RandomRequests,
) -> list[str]:
    """Sends random requests to a router and to one process, several at a time, so that requests are
    merged to batches; returns those whose responses differ.

    Args:
      services: The router, and the process that holds everything.
      seed: Of the requests.
      count: The number of requests.
      compared: Returns what of a response must be equal.
      drawing: Draws the requests.
    """
    requests = drawing(seed)
    drawn = [requests.draw() for _ in range(count)]
    with (
        httpx.Client(base_url=services[0].http, timeout=60) as ours,
        httpx.Client(base_url=services[1].http, timeout=60) as theirs,
        ThreadPoolExecutor(CALLERS) as callers,
    ):

        def pair(call_and_body: tuple[str, dict[str, Any]]) -> list[tuple[int, Any]]:
            return [response(client, *call_and_body) for client in (ours, theirs)]

        responses = list(callers.map(pair, drawn))
    statuses = {expected[0] for _, expected in responses}
    assert statuses >= {200, 400, 413}, "requests within limits and beyond them were drawn"
    return [
        json.dumps([request, received, expected])[:2000]
        for request, (received, expected) in zip(drawn, responses, strict=True)
        if compared(received) != compared(expected)
    ]
