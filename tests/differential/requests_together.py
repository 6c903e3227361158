"""Executes requests one after the other and all at once, and compares what they get."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from service.codec.operations import OPERATIONS
from service.contract.messages import Explanation, Target
from service.engine.context import RequestContext
from service.errors import ServiceError
from tests.differential.random_requests import IDS, Call, RandomRequests
from tests.e2e.process import WAIT_S
from tests.units.service.running import RunningService


class AlikeRequests(RandomRequests):
    """Draws families of requests: those of one differ in their examples and lists of ids alone, so
    that most of them can be merged.
    """

    def family(self, size: int) -> Iterator[Call]:
        """Yields requests that are alike."""
        call, body = self.draw()
        yield call, body
        for _ in range(size - 1):
            alike = {name: self._redrawn(name, value) for name, value in body.items()}
            if "candidate_features" in body:
                alike["candidate_features"] = {"year": [0.5] * len(alike["candidate_ids"])}
            yield call, alike

    def order(self, count: int) -> list[int]:
        """Returns the numbers below `count` in any order."""
        return [int(number) for number in self._random.permutation(count)]

    def draw(self) -> Call:
        """Returns a call and its body, with options that responses of services at different places
        cannot agree on, and exclusions that make searches go deeper.
        """
        call, body = super().draw()
        if call in ("retrieve", "recommend"):
            if self._chance(0.2):
                body["explain"] = True
            if self._chance(0.2):
                body["recall"] = 0.5
            if self._chance(0.1):
                body["exclude_ids"] = self._ids(200, 900)
        if call == "rank":
            if self._chance(0.3):
                body["heads"] = ["watch"]
            if self._chance(0.3):
                body["context"] = {"user": 1, "liked": {"ids": IDS[:2], "weights": [0.5, 2.0]}}
        return call, body

    def _redrawn(self, name: str, value: Any) -> Any:
        match name:
            case "exclude_ids" | "negative_ids" | "ids" | "candidate_ids":
                return self._ids(1, 2 + len(value))
            case "vectors":
                count = self._number(1, 1 + len(value))
                vectors = self._random.normal(size=(count, 8)).astype(np.float32)
                return vectors.tolist()
            case "context" | "features":
                return {part: self._feature(part, content) for part, content in value.items()}
            case "requests" | "sources":
                return [
                    {part: self._redrawn(part, content) for part, content in entry.items()}
                    for entry in value
                ]
            case _:
                return value

    def _feature(self, name: str, value: Any) -> Any:
        if name == "user":
            return self._number(0, 20)
        if name == "history":
            return self._ids(0, 12)
        if name == "liked":
            ids = self._ids(1, 4)
            return {"ids": ids, "weights": [round(0.5 + number, 1) for number in range(len(ids))]}
        return value


def read(service: RunningService, calls: Sequence[Call]) -> list[tuple[str, Any]]:
    """Returns the requests that can be read, each with its call."""
    requests = []
    for call, body in calls:
        content = json.dumps(body).encode()
        try:
            request, _ = OPERATIONS[call].read(content, False, Target("movies"), service.settings)
        except ServiceError:
            continue
        requests.append((call, request))
    return requests


def alone(service: RunningService, requests: Sequence[tuple[str, Any]]) -> list[Any]:
    """Returns the response to each request, which is sent once the one before it has responded."""

    async def execute() -> list[Any]:
        return [await _response(service, call, request) for call, request in requests]

    return service.call(execute())


def together(service: RunningService, requests: Sequence[tuple[str, Any]]) -> list[Any]:
    """Returns the response to each request, all of which are sent at the same time."""

    async def execute() -> list[Any]:
        responses = [_response(service, call, request) for call, request in requests]
        return await asyncio.gather(*responses)

    return service.call(execute())


async def _response(service: RunningService, call: str, request: Any) -> Any:
    context = RequestContext(call, "test-request", time.monotonic() + WAIT_S)
    try:
        return exact_value(await service.dataplane.engine.execute(request, context))
    except ServiceError as problem:
        return type(problem).__name__, str(problem), repr(problem.violations)


def exact_value(value: Any) -> Any:
    """Returns what is equal for values of the same bits, times apart."""
    if isinstance(value, Explanation):
        return value._replace(search_ms=0.0)
    if isinstance(value, np.ndarray):
        content = value.tobytes()
        if value.dtype == object:
            content = repr(value.tolist()).encode()
        return value.dtype.str, value.shape, content
    if is_dataclass(value):
        return [(part.name, exact_value(getattr(value, part.name))) for part in fields(value)]
    if isinstance(value, Mapping):
        return {name: exact_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [exact_value(part) for part in value]
    return value


def merged_share(service: RunningService, call: str) -> float:
    """Returns the number of requests of a call by the number of batches that they were computed
    in.
    """
    requests = service.value("rowcast_batch_requests_sum", call=call)
    return requests / service.value("rowcast_batch_requests_count", call=call)
