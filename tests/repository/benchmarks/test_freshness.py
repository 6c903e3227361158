"""The contest of engines that take changes, with exact search in a dict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.freshness import BATCH, K, Vectors, measure


class Exact:
    """Searches exactly; with the setting "wrong", for the opposite of a vector."""

    settings = ("wrong", "right")

    def __init__(self, corpus: Vectors) -> None:
        self._vectors = dict(enumerate(corpus))
        self._sign = 1

    def use(self, setting: str) -> None:
        self._sign = 1
        if setting == "wrong":
            self._sign = -1

    def query(self, vector: Vectors) -> Sequence[int]:
        vectors = self._vectors.copy()
        scores = self._sign * np.stack(list(vectors.values())) @ vector
        ids = np.array(list(vectors))
        return [int(key) for key in ids[np.argsort(-scores)[:K]]]

    def upsert(self, ids: Sequence[int], vectors: Vectors) -> None:
        self._vectors = self._vectors | dict(zip(ids, vectors, strict=True))


def test_exact_engine_reaches_the_recall_and_keeps_it_behind_changes() -> None:
    random = np.random.default_rng(3)
    corpus = random.standard_normal((500, 8)).astype(np.float32)
    queries = random.standard_normal((20, 8)).astype(np.float32)
    outcome = measure(Exact(corpus), corpus, queries, rate=20 * BATCH, seconds=0.2)
    assert (outcome.setting, outcome.recall, outcome.recall_after) == ("right", 1, 1)
    assert min(outcome.alone_per_s, outcome.beside_per_s, outcome.visible_p99_ms) > 0


class Broken(Exact):
    """Takes no changes."""

    def upsert(self, ids: Sequence[int], vectors: Vectors) -> None:
        raise ValueError(f"{len(ids)} changes are not taken")


def test_engine_that_takes_no_changes_is_an_error() -> None:
    corpus = np.eye(200, dtype=np.float32)
    with pytest.raises(ValueError, match="50 changes are not taken"):
        measure(Broken(corpus), corpus, corpus[:5], rate=1000, seconds=0.1)
