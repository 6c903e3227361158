"""States of histories that the workers of a service share: whatever else happens, responses are
those of the model that made the version.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytest
from rowcast_client import Client

from export.graphs.loading import load_tensorflow
from tests.differential.test_rankers_of_sequences import HEADS, export_of
from tests.e2e.process import WAIT_S, Process
from tests.models import sequence_ranker

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

tf = load_tensorflow()
MODEL = "random"
THREADS = 8
REQUESTS = 1250
"""The number of requests of each thread: 10,000 in all."""


class Answer(NamedTuple):
    version: int
    history: list[int]
    movies: list[int]
    scores: list[list[float]]


class People:
    """A few people whose histories grow, and of whom two begin alike."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(11)
        self._lock = Lock()
        shared = self.events(9)
        self._histories = [[*shared, *self.events(1)], [*shared, *self.events(2)], self.events(3)]

    def events(self, count: int) -> list[int]:
        movies: list[int] = self._random.integers(1, sequence_ranker.MOVIES, count).tolist()
        return movies

    def request(self) -> tuple[list[int], list[int]]:
        """Returns somebody's history and three movies."""
        with self._lock:
            person = int(self._random.integers(len(self._histories)))
            history = self._histories[person]
            if self._random.random() < 0.3:
                history = [*history, *self.events(int(self._random.integers(1, 4)))]
            if self._random.random() < 0.05 or len(history) > sequence_ranker.EVENTS:
                history = history[: int(self._random.integers(2, 12))]
            self._histories[person] = history
            return history, self.events(3)


def answers_of(address: str, people: People, count: int) -> list[Answer]:
    answers = []
    with Client(address, timeout_s=WAIT_S) as client:
        for _ in range(count):
            history, movies = people.request()
            result = client.rank(
                {"history": history}, candidate_features={"movie": movies}, heads=[*HEADS]
            )
            ranked = sorted(result[0], key=lambda each: each.position)
            scores = [[each.heads[head] for head in HEADS] for each in ranked]
            answers.append(Answer(result.version, history, movies, scores))
    return answers


def expected_of(model: Any, answers: list[Answer]) -> Any:
    """Returns what a model gives."""
    histories = np.zeros((len(answers), sequence_ranker.EVENTS), np.int64)
    for row, answer in zip(histories, answers, strict=True):
        row[: len(answer.history)] = answer.history
    movies = np.array([answer.movies for answer in answers])
    results = model(
        {
            "history": tf.constant(histories.repeat(movies.shape[1], axis=0)),
            "movie": tf.constant(movies.reshape(-1)),
        }
    )
    heads = [results[head].numpy().reshape(movies.shape) for head in HEADS]
    return np.stack(heads, axis=2)


def test_workers_share_states_over_kills_and_a_new_version(tmp_path: Path) -> None:
    published, first, _ = export_of(tmp_path / "exports", "build", seed=5)
    _, second, _ = export_of(tmp_path / "exports", "build", seed=6)
    root = tmp_path / "root"
    shutil.copytree(published / MODEL / "1", root / MODEL / "1")
    options = ("--workers", "2", "--context-states", str(tmp_path / "states"))
    people = People()
    answers: list[Answer] = []
    for phase in range(2):
        process = Process(root, *options, "--request-timeout-s", str(WAIT_S))
        process.event("version_available", version=1)
        address = f"http://127.0.0.1:{process.ports['http']}"
        with ThreadPoolExecutor(THREADS) as pool:
            calls = [
                pool.submit(answers_of, address, people, REQUESTS // 2) for _ in range(THREADS)
            ]
            if phase:
                shutil.copytree(published / MODEL / "2", tmp_path / "moved")
                (tmp_path / "moved").rename(root / MODEL / "2")
            answers += [answer for call in calls for answer in call.result()]
        process.kill()
    for version, model in ((1, first), (2, second)):
        of_version = [answer for answer in answers if answer.version == version]
        actual = [answer.scores for answer in of_version]
        np.testing.assert_allclose(actual, expected_of(model, of_version), rtol=1e-5, atol=1e-5)
    assert len(answers) == 10_000
    assert {answer.version for answer in answers} == {1, 2}
