"""Sends a service an example's requests over both transports, and compares the responses with the
original model's outputs.
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

from examples.requests import Body, Outputs

TOLERANCE = 1e-5
"""The parity rule: an output y may differ from the original's by TOLERANCE + TOLERANCE * |y|."""
CANDIDATES = 200
"""Number of candidates of a timed request."""
TIMED = 60
"""Number of timed requests."""
WARM_UP = 10
"""Number of requests before those that are timed."""
TIMEOUT_S = 60
NEIGHBORS = "neighbors"
SCORE = "score"


@dataclass(frozen=True)
class Difference:
    """Differences of a service's outputs from the original model's.

    Attributes:
      largest: The largest absolute difference.
      of_limit: The largest share of what the parity rule allows; above 1 the rule is broken.
    """

    largest: float
    of_limit: float


def over_http(url: str, model: str, bodies: Sequence[Body]) -> list[Outputs]:
    """Sends each body as JSON; returns the outputs of each response."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        return [_read_json(body, _post(client, model, body)) for body in bodies]


def _post(client: httpx.Client, model: str, body: Body) -> Any:
    content = {name: value for name, value in body.items() if name != "call"}
    response = client.post(f"/v1/models/{model}:{body['call']}", json=content)
    response.raise_for_status()
    return response.json()


def _read_json(body: Body, response: Any) -> Outputs:
    if body["call"] == "rank":
        outputs = {SCORE: response["scores"], **response["heads"]}
    elif body["call"] == "embed":
        outputs = {body["tower"]: [response["vector"]]}
    else:
        outputs = {NEIGHBORS: [response["scores"]]}
    return {name: np.array(values, np.float32) for name, values in outputs.items()}


def over_grpc(url: str, model: str, bodies: Sequence[Body]) -> list[Outputs]:
    """Sends each body by the client; returns the outputs of each response."""
    with Client(url, timeout_s=TIMEOUT_S) as client:
        return [_read_message(body, _send(client, model, body)) for body in bodies]


def _send(client: Client, model: str, body: Body) -> Any:
    # One call of the client may have several contexts, so its arguments are plural.
    renamed = {"context_id": "context_ids"}
    arguments = {renamed.get(name, name): value for name, value in body.items() if name != "call"}
    return getattr(client, body["call"])(**arguments, model=model)


def _read_message(body: Body, result: Any) -> Outputs:
    if body["call"] == "rank":
        return {SCORE: result[0].scores, **result[0].heads}
    if body["call"] == "embed":
        return {body["tower"]: result.vectors}
    return {NEIGHBORS: result[0].scores[np.newaxis]}


def compare(bodies: Sequence[Body], actual: Sequence[Outputs], expected: Outputs) -> Difference:
    """Compares the outputs of all responses with the expected outputs.

    Raises:
      ValueError: A response lacks an output, or it has another shape.
    """
    # The expected outputs of all requests lie end to end, by name.
    positions = dict.fromkeys(expected, 0)
    largest = 0.0
    of_limit = 0.0
    for body, outputs in zip(bodies, actual, strict=True):
        for name in _names(body, expected):
            original = expected[name][positions[name] : positions[name] + _rows(body)]
            positions[name] += _rows(body)
            # Heads that a request does not name are expected, but not returned.
            if body["call"] == "rank" and name not in {SCORE, *body.get("heads", ())}:
                continue
            if name not in outputs or outputs[name].shape != original.shape:
                raise ValueError(
                    f"{name!r} of shape {original.shape} was requested, {list(outputs)} came"
                )
            difference = np.abs(outputs[name].astype(np.float64) - original)
            limit = TOLERANCE + TOLERANCE * np.abs(original)
            largest = max(largest, float(difference.max(initial=0)))
            of_limit = max(of_limit, float((difference / limit).max(initial=0)))
    if positions != {name: len(values) for name, values in expected.items()}:
        raise ValueError(
            f"the requests are of {positions} values, which is not what is expected of them"
        )
    return Difference(largest, of_limit)


def counts(bodies: Sequence[Body], expected: Outputs) -> dict[str, int]:
    """Returns the number of expected values of each name for some requests."""
    totals = dict.fromkeys(expected, 0)
    for body in bodies:
        for name in _names(body, expected):
            totals[name] += _rows(body)
    return totals


def _names(body: Body, expected: Outputs) -> list[str]:
    """Returns the names of the expected outputs of a request. A ranking has the score and all
    heads, requested or not.
    """
    if body["call"] == "embed":
        return [body["tower"]]
    if body["call"] == "retrieve":
        return [NEIGHBORS]
    # Scores have one axis; the vectors of a tower have two.
    return [name for name, values in expected.items() if name != NEIGHBORS and values.ndim == 1]


def _rows(body: Body) -> int:
    """Returns the number of rows of a request's expected outputs."""
    if body["call"] != "rank":
        return 1
    if "candidate_ids" in body:
        return len(body["candidate_ids"])
    return len(next(iter(body["candidate_features"].values())))


def milliseconds(url: str, model: str, bodies: Sequence[Body]) -> float:
    """Returns the median time of a gRPC call that ranks or retrieves CANDIDATES candidates."""
    bodies = bodies[: TIMED + WARM_UP]
    requests = [_enlarged(body) for body in bodies if body["call"] in ("rank", "retrieve")]
    times = []
    with Client(url, timeout_s=TIMEOUT_S) as client:
        for body in requests:
            start = time.perf_counter()
            _send(client, model, body)
            times.append(time.perf_counter() - start)
    return 1e3 * median(times[WARM_UP:])


def _enlarged(body: Body) -> Body:
    """Returns a request with CANDIDATES candidates: the candidates of a ranking, repeated."""
    if body["call"] != "rank":
        return {**body, "k": CANDIDATES}

    def repeated(values: Sequence[Any]) -> list[Any]:
        return [values[position % len(values)] for position in range(CANDIDATES)]

    enlarged = dict(body)
    if "candidate_ids" in body:
        enlarged["candidate_ids"] = repeated(body["candidate_ids"])
    if "candidate_features" in body:
        features = body["candidate_features"].items()
        enlarged["candidate_features"] = {name: repeated(values) for name, values in features}
    return enlarged
