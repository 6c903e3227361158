"""Random requests of all calls, with every option that the contract declares, some of them beyond a
limit; and the services that are compared by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import USERS, write_small_bundle
from tests.cases.random_requests import random_filter
from tests.e2e.process import WAIT_S
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
CALLERS = 4
MESSAGES: dict[str, Any] = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
    "lookup": pb.LookupRequest,
    "source": pb.Source,
    "filter": pb.Filter,
    "condition": pb.Condition,
    "circle": pb.Circle,
}
ELSEWHERE = {
    # The URL names the model, and lists in JSON have no offsets.
    *["model", "offsets", "exclude_offsets", "negative_offsets", "query_offsets"],
    # Responses say how their own service searched; `AlikeRequests` compares one with itself.
    *["explain", "recall", "heads"],
}
"""Fields of messages that these requests do not have."""
OPTIONS = {
    f"{name}.{field.name}"
    for name, message in MESSAGES.items()
    for field in message.DESCRIPTOR.fields
    if field.name not in ELSEWHERE
}
"""All that a request can say, as the contract declares it."""

Call = tuple[str, dict[str, Any]]
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


class Draws:
    """Draws numbers and values by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def _number(self, first: int, end: int) -> int:
        return int(self._random.integers(first, end))

    def _chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _pick(self, values: Sequence[Any]) -> Any:
        return values[self._number(0, len(values))]


class RandomRequests(Draws):
    """Draws requests."""

    def __init__(self, seed: int, ids: Sequence[int] = IDS, context_ids: Sequence[int] = (3, 7)):
        """Creates the requests of a seed.

        Args:
          seed: The seed.
          ids: The ids of candidates.
          context_ids: The ids of stored contexts.
        """
        super().__init__(seed)
        self._known_ids = ids
        self._context_ids = context_ids

    def draw(self) -> Call:
        """Returns a call and its body."""
        call, body = self._drawn()
        if f"{call}.min_score" in OPTIONS and self._chance(0.2):
            body["min_score"] = float(self._number(-3, 3))
        return call, body

    def _drawn(self) -> Call:
        kind = self._number(0, 11)
        if kind < 5:
            return "retrieve", self._retrieval()
        if kind < 8:
            return "recommend", self._recommendation()
        if kind < 9:
            return "rank", self._ranking()
        if kind < 10:
            return "embed", self._embedding()
        if self._chance(0.5):
            return "lookup", {"feature": "movie", **self._examples("ids", 700)}
        ids = [self._number(-1, USERS + 2) for _ in range(self._number(1, 700))]
        return "lookup", {"feature": "user", "ids": ids}

    def _ids(self, fewest: int, end: int) -> list[int]:
        count = self._number(fewest, end)
        return [self._pick(self._known_ids) for _ in range(count)]

    def _examples(self, name: str, end: int) -> dict[str, Any]:
        """Returns ids as a field. Some of them may not exist, and are skipped then."""
        ids = self._ids(1, end)
        if not self._chance(0.4):
            return {name: ids}
        gone = [self._number(0, 100) for _ in range(self._number(0, 3))]
        return {name: [*ids[self._number(0, 2) :], *gone], "not_found": "skip"}

    def _context(self) -> dict[str, Any]:
        context: dict[str, Any] = {"user": self._number(0, USERS)}
        if self._chance(0.5):
            context["history"] = self._ids(0, 12)
        if self._chance(0.2):
            context["city"] = "oslo"
        if self._chance(0.2):
            return {"context": context, "context_id": self._pick(self._context_ids)}
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

    def _recommendation(self) -> dict[str, Any]:
        body = {**self._selection(), **self._contexts()}
        if self._chance(0.4):
            body.pop("index", None)
            body["sources"] = [self._source(number) for number in range(self._number(1, 4))]
        if self._chance(0.3):
            body["skip_stage"] = True
        elif self._chance(0.3):
            body["keep"] = self._number(0, 90)
        if self._chance(0.1):
            body["tower"] = "ranking"
        return body

    def _ranking(self) -> dict[str, Any]:
        body = {**self._context(), **self._examples("candidate_ids", 350)}
        if self._chance(0.4):
            body["k"] = self._number(0, 20)
        if self._chance(0.2):
            body["formula"] = "watch + 0.5 * rating"
        if self._chance(0.2):
            body["tower"] = self._pick(["ranking", "quick"])
        if "not_found" not in body and self._chance(0.4):
            years = self._random.random(len(body["candidate_ids"]))
            body["candidate_features"] = {"year": years.astype(np.float32).tolist()}
        return body

    def _embedding(self) -> dict[str, Any]:
        if self._chance(0.5):
            return {"tower": "query", "features": self._context()["context"]}
        features = {"movie": self._pick(self._known_ids), "genres": [self._pick(GENRES)]}
        return {"tower": "candidate", "features": {**features, "year": 0.25}}

    def _selection(self) -> dict[str, Any]:
        body: dict[str, Any] = {"k": self._number(0, 64)}
        if self._chance(0.2):
            body["index"] = "movies"
        if self._chance(0.4):
            body["crowding"] = {self._pick(["studio", "classic", "year"]): self._number(1, 4)}
        if self._chance(0.3):
            body["diversity"] = round(float(self._random.random()), 2)
        if self._chance(0.2):
            body["pool_size"] = self._number(1, 320)
            if self._chance(0.5):
                body["offset"] = self._number(0, 80)
        if self._chance(0.3):
            body["exclude_ids"] = self._ids(0, 40)
        if self._chance(0.2):
            body["negative_ids"] = self._ids(0, 6)
        if self._chance(0.4):
            body["filter"] = random_filter(Random(self._number(0, 1 << 31)))
        if self._chance(0.3):
            body["attributes"] = ["title", "year"]
        if self._chance(0.1):
            body["formula"] = "score + rating / 100"
        return body

    def _source(self, number: int) -> dict[str, Any]:
        source: dict[str, Any] = {"name": f"source {number}", "fallback": self._chance(0.2)}
        if self._chance(0.2):
            source["min_count"] = self._number(0, 3)
        if self._chance(0.5):
            return source | {"index": "movies", "pool_size": self._number(0, 60)}
        if self._chance(0.4):
            return source | {"list": self._pick(["popular", "new"])}
        return source | {"ids": self._ids(0, 30), "max_count": self._number(3, 9)}


def options_of(calls: Iterable[Call]) -> set[str]:
    """Returns what requests say, by the names of `OPTIONS`."""
    options = set[str]()

    def add_filter(value: Mapping[str, Any]) -> None:
        for name, part in value.items():
            if name == "near":
                options.add("filter.near")
                options.update([f"circle.{field}" for circle in part for field in circle])
            elif isinstance(part, list):
                options.add(f"filter.{name}")
                for nested in part:
                    add_filter(nested)
            else:
                options.add("filter.conditions")
                options.update([f"condition.{field}" for field in part])

    for call, body in calls:
        parts = [body, *body.get("requests", [])]
        options.update([f"{call}.{name}" for part in parts for name in part])
        options.update([f"source.{name}" for source in body.get("sources", []) for name in source])
        add_filter(body.get("filter", {}))
    # The plural of the contract stands for a JSON field of each request.
    return {option.replace(".context_id", ".context_ids") for option in options}


def response(client: httpx.Client, call: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Returns the status of a call, and the response without the id of the request."""
    response = client.post(f"/v1/models/movies:{call}", json=body)
    content = response.json()
    content.get("error", {}).pop("request_id", None)
    return response.status_code, content


def responses(
    service: RunningService, drawn: Sequence[Call], **headers: str
) -> list[tuple[int, Any]]:
    """Sends requests, several at a time, so that they are merged to batches; returns the statuses
    and responses.
    """
    with (
        httpx.Client(
            base_url=service.http, timeout=WAIT_S, headers=headers, verify=False
        ) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        received = list(callers.map(lambda call: response(client, *call), drawn))
    statuses = {status for status, _ in received}
    assert statuses >= {200, 400, 413}, "requests within limits and beyond them were drawn"
    return received


def differences(
    drawn: Sequence[Call],
    received: Sequence[tuple[int, Any]],
    expected: Sequence[tuple[int, Any]],
    compared: Callable[[tuple[int, Any]], Any] = lambda response: response,
) -> list[str]:
    """Returns the requests whose responses differ.

    Args:
      drawn: The requests.
      received: The responses.
      expected: The responses of another service.
      compared: Returns what of a response must be equal.
    """
    return [
        json.dumps([request, *pair])[:2000]
        for request, *pair in zip(drawn, received, expected, strict=True)
        if compared(pair[0]) != compared(pair[1])
    ]
