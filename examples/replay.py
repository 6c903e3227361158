"""Sends a service an example's requests over both transports, and compares with the original
model's answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
import numpy as np
from rowcast_client import Client

from examples.requests import Answers, Body

TOLERANCE = 1e-5
"""An output y may differ from the original's by this much, and by this much times |y|."""
CANDIDATES = 200
TIMED = 60
WARM_UP = 10
TIMEOUT_S = 60
NEIGHBORS = "neighbors"
SCORE = "score"


@dataclass(frozen=True)
class Difference:
    """How far answers are from the original model's.

    Attributes:
      largest: |d|.
      of_limit: the largest |d| / (1e-5 + 1e-5 |y|); above 1 the parity rule is broken.
    """

    largest: float
    of_limit: float


def over_http(url: str, model: str, bodies: Sequence[Body]) -> list[Answers]:
    """Sends each body as JSON; returns the answers' numbers."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        return [_read_json(body, _post(client, model, body)) for body in bodies]


def _post(client: httpx.Client, model: str, body: Body) -> Any:
    content = {name: value for name, value in body.items() if name != "call"}
    answer = client.post(f"/v1/models/{model}:{body['call']}", json=content)
    answer.raise_for_status()
    return answer.json()


def _read_json(body: Body, found: Any) -> Answers:
    if body["call"] == "rank":
        named = {SCORE: found["scores"], **found["heads"]}
    elif body["call"] == "embed":
        named = {body["tower"]: [found["vector"]]}
    else:
        named = {NEIGHBORS: [found["scores"]]}
    return {name: np.array(values, np.float32) for name, values in named.items()}


def over_grpc(url: str, model: str, bodies: Sequence[Body]) -> list[Answers]:
    """Sends each body by the client; returns the answers' numbers."""
    with Client(url, timeout_s=TIMEOUT_S) as client:
        return [_read_message(body, _send(client, model, body)) for body in bodies]


def _send(client: Client, model: str, body: Body) -> Any:
    # The client takes several at once.
    renamed = {"context_id": "context_ids"}
    arguments = {renamed.get(name, name): value for name, value in body.items() if name != "call"}
    return getattr(client, body["call"])(**arguments, model=model)


def _read_message(body: Body, found: Any) -> Answers:
    if body["call"] == "rank":
        return {SCORE: found[0].scores, **found[0].heads}
    if body["call"] == "embed":
        return {body["tower"]: found.vectors}
    return {NEIGHBORS: found[0].scores[np.newaxis]}


def compare(bodies: Sequence[Body], found: Sequence[Answers], expected: Answers) -> Difference:
    """Compares the answers to all bodies with what was expected.

    Raises:
      ValueError: an answer lacks what was requested, or has another length.
    """
    places = dict.fromkeys(expected, 0)
    largest = of_limit = 0.0
    for body, answers in zip(bodies, found, strict=True):
        for name in _names(body, expected):
            original = expected[name][places[name] : places[name] + _rows(body)]
            places[name] += _rows(body)
            if body["call"] == "rank" and name not in {SCORE, *body.get("heads", ())}:
                continue
            if name not in answers or answers[name].shape != original.shape:
                raise ValueError(
                    f"{name!r} of shape {original.shape} was requested, {list(answers)} came"
                )
            difference = np.abs(answers[name].astype(np.float64) - original)
            largest = max(largest, float(difference.max(initial=0)))
            of_limit = max(
                of_limit,
                float((difference / (TOLERANCE + TOLERANCE * np.abs(original))).max(initial=0)),
            )
    if places != {name: len(values) for name, values in expected.items()}:
        raise ValueError(
            f"the requests are of {places} values, which is not what is expected of them"
        )
    return Difference(largest, of_limit)


def counts(bodies: Sequence[Body], expected: Answers) -> dict[str, int]:
    """Returns how many values of each name are expected of some requests."""
    found = dict.fromkeys(expected, 0)
    for body in bodies:
        for name in _names(body, expected):
            found[name] += _rows(body)
    return found


def _names(body: Body, expected: Answers) -> list[str]:
    """Returns what is expected of a request: of a ranking the score and all heads, requested or
    not.
    """
    if body["call"] == "embed":
        return [body["tower"]]
    scores = {SCORE} | {
        name for name, values in expected.items() if name != NEIGHBORS and values.ndim == 1
    }
    return (
        [NEIGHBORS] if body["call"] == "retrieve" else [name for name in expected if name in scores]
    )


def _rows(body: Body) -> int:
    if body["call"] != "rank":
        return 1
    return (
        len(body["candidate_ids"])
        if "candidate_ids" in body
        else len(next(iter(body["candidate_features"].values())))
    )


def milliseconds(url: str, model: str, bodies: Sequence[Body]) -> float:
    """Returns the median time of a gRPC call for 200 candidates: ranked, or else found."""
    requests = [
        _enlarged(body)
        for body in bodies[: TIMED + WARM_UP]
        if body["call"] in ("rank", "retrieve")
    ]
    times = []
    with Client(url, timeout_s=TIMEOUT_S) as client:
        for body in requests:
            start = time.perf_counter()
            _send(client, model, body)
            times.append(time.perf_counter() - start)
    return 1e3 * median(times[WARM_UP:])


def _enlarged(body: Body) -> Body:
    """Makes it a request for 200 candidates: its own, repeated."""
    if body["call"] != "rank":
        return {**body, "k": CANDIDATES}

    def again(values: Sequence[Any]) -> list[Any]:
        return [values[place % len(values)] for place in range(CANDIDATES)]

    enlarged = dict(body)
    if "candidate_ids" in body:
        enlarged["candidate_ids"] = again(body["candidate_ids"])
    if "candidate_features" in body:
        features = body["candidate_features"].items()
        enlarged["candidate_features"] = {name: again(values) for name, values in features}
    return enlarged
