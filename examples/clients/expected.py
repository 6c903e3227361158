"""The output that clients must print, made from the results of the Python client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rowcast_client import Client, InvalidArgument

from examples.clients.output import Output, Result
from examples.quickstart.__main__ import MODEL

NEW_MOVIES = Path("examples/quickstart/new-movies.jsonl")
NEW_MOVIE = 2**53 + 1
"""The id of the movie that is added: the first integer that float64 does not hold."""
NEW_MOVIE_NORM = 2.0
"""The length of its vector, by which it is the nearest of the first viewer."""

Viewer = Mapping[str, Any]
FIRST_VIEWER: Viewer = {"user_id": 7, "history": [1, 5, 12, 31], "hour": 20}
SECOND_VIEWER: Viewer = {"user_id": 8, "history": [47], "hour": 9}
CANDIDATES = (47, 50, 151, NEW_MOVIE)
K = 5
REJECTED_HOUR = 24
"""The table of hours has no such row."""


def add_movie(client: Client) -> None:
    """Adds a movie near the first viewer, whose id JSON numbers would round."""
    (line, *_) = NEW_MOVIES.read_text().splitlines()
    movie = json.loads(line)
    features = {name: [value] for name, value in movie["features"].items()}
    attributes = {name: [value] for name, value in movie["attributes"].items()}
    query = client.embed(FIRST_VIEWER, tower="query", model=MODEL).vectors
    vectors = {"movies": query / np.linalg.norm(query) * NEW_MOVIE_NORM}
    client.upsert_candidates(
        [NEW_MOVIE], features, attributes=attributes, vectors=vectors, model=MODEL
    )


def expected_outputs(client: Client) -> dict[str, Output]:
    """Returns what clients print, by transport: over HTTP they rank, over gRPC they retrieve."""
    return {"HTTP": _ranked(client), "gRPC": _retrieved(client)}


def _ranked(client: Client) -> Output:
    movies = client.rank(FIRST_VIEWER, CANDIDATES, not_found="skip", model=MODEL)[0]
    results = _results(FIRST_VIEWER, movies)
    try:
        rejected = {**FIRST_VIEWER, "hour": REJECTED_HOUR}
        client.rank(rejected, CANDIDATES, not_found="skip", model=MODEL)
    except InvalidArgument as error:
        return _output(results, error)
    raise AssertionError(f"hour {REJECTED_HOUR} was accepted")


def _retrieved(client: Client) -> Output:
    viewers = [FIRST_VIEWER, SECOND_VIEWER]
    results = []
    for viewer, movies in zip(viewers, client.retrieve(viewers, k=K, model=MODEL), strict=True):
        results += _results(viewer, movies)
    try:
        rejected = {**SECOND_VIEWER, "hour": REJECTED_HOUR}
        client.retrieve([FIRST_VIEWER, rejected], k=K, model=MODEL)
    except InvalidArgument as error:
        return _output(results, error)
    raise AssertionError(f"hour {REJECTED_HOUR} was accepted")


def _results(viewer: Viewer, movies: Any) -> list[Result]:
    return [Result(viewer["user_id"], movie.id, movie.score) for movie in movies]


def _output(results: list[Result], error: InvalidArgument) -> Output:
    fields = [violation.field for violation in error.violations]
    return Output(results, error.code, error.message, fields)
