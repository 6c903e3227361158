"""What the engines of `benchmarks/fresh_peers.py` have in common: the contest, without anything of
rowcast, since it runs in the environments of the peers, too.

One caller sends queries, and another one changes, as in every contest. Each engine finds the
nearest vectors by their inner product, with a setting that reaches the recall before any change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

K = 100
RECALL = 0.95
BATCH = 50
"""Changes in a request."""
NEW_ID = 10_000_000
CYCLE = 5000
"""New ids of the stream: each is replaced again and again."""
Vectors = NDArray[np.float32]


class Engine(Protocol):
    """A running engine that holds all vectors of the corpus, with their positions as ids."""

    @property
    def settings(self) -> Sequence[Any]:
        """What may be given to `use`, the fastest first."""

    def use(self, setting: Any) -> None:
        """Has later queries searched with a setting."""

    def query(self, vector: Vectors) -> Sequence[int]:
        """Returns the ids of the K nearest. One thread calls it."""

    def upsert(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Adds or replaces vectors. Another thread calls it."""


@dataclass(frozen=True)
class Outcome:
    """What was measured of an engine.

    Attributes:
      setting: With which it reaches the recall, or the last one.
      recall: Of K neighbors, before any change.
      alone_per_s: Queries per second of one caller.
      beside_per_s: The same beside the stream of changes.
      beside_p99_ms: The latency of these queries.
      changes_per_s: Changes per second that were acknowledged meanwhile.
      visible_ms: From the acknowledgement of a new vector to the response that has it: the median.
      visible_p99_ms: The same, of 99 percent.
      recall_after: The recall of the last state, behind all changes.
    """

    setting: str
    recall: float
    alone_per_s: float
    beside_per_s: float
    beside_p99_ms: float
    changes_per_s: float
    visible_ms: float
    visible_p99_ms: float
    recall_after: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    engine: Engine, corpus: Vectors, queries: Vectors, rate: int, seconds: float
) -> Outcome:
    """Measures an engine.

    Args:
      engine: It holds the corpus.
      corpus: [n, dim] float32.
      queries: [q, dim] float32.
      rate: Changes per second that are sent, if the engine keeps up.
      seconds: How long throughput is measured.
    """
    random = np.random.default_rng(5)
    state = dict(enumerate(corpus))
    setting, recall = _tune(engine, state, queries)
    alone = _latencies(engine, queries, seconds)

    stream = _Stream(engine, corpus, rate, random)
    stream.start()
    time.sleep(min(5.0, seconds))  # the new ids exist, and are replaced from now on
    before = stream.sent
    began = time.perf_counter()
    latencies = _latencies(engine, queries, seconds)
    changes_per_s = (stream.sent - before) / (time.perf_counter() - began)
    state |= stream.stop()

    visible_s = [_visible_s(engine, corpus, number, random, state) for number in range(50)]
    return Outcome(
        setting=str(setting),
        recall=recall,
        alone_per_s=len(alone) / sum(alone),
        beside_per_s=len(latencies) / sum(latencies),
        beside_p99_ms=1000 * float(np.percentile(latencies, 99)),
        changes_per_s=changes_per_s,
        visible_ms=1000 * float(np.median(visible_s)),
        visible_p99_ms=1000 * float(np.percentile(visible_s, 99)),
        recall_after=_recall(engine, state, queries),
    )


class _Stream:
    """Sends changes at a rate in a thread of its own.

    Attributes:
      sent: How many were acknowledged.
    """

    def __init__(
        self, engine: Engine, corpus: Vectors, rate: int, random: np.random.Generator
    ) -> None:
        self.sent = 0
        self._engine = engine
        self._corpus = corpus
        self._interval_s = BATCH / rate
        self._random = random
        self._state: dict[int, Vectors] = {}
        self._problem: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> dict[int, Vectors]:
        """Ends the stream; returns the vectors that it has left."""
        self._stopped.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._state

    def _run(self) -> None:
        try:
            due = time.perf_counter()
            while not self._stopped.wait(max(0.0, due - time.perf_counter())):
                self._send()
                due = max(due + self._interval_s, time.perf_counter() - 1)
        except Exception as problem:  # noqa: BLE001 - raised by `stop`
            self._problem = problem

    def _send(self) -> None:
        first = NEW_ID + self.sent % CYCLE
        ids = range(first, first + BATCH)
        vectors = _like(self._corpus, BATCH, self._random)
        self._engine.upsert(ids, vectors)
        self._state |= dict(zip(ids, vectors, strict=True))
        self.sent += BATCH


def _like(corpus: Vectors, count: int, random: np.random.Generator) -> Vectors:
    """Returns vectors near to some of the corpus."""
    vectors = corpus[random.integers(0, len(corpus), count)]
    noise = random.standard_normal(vectors.shape).astype(np.float32)
    near: Vectors = vectors + 0.1 * vectors.std() * noise
    return near


def _tune(engine: Engine, state: dict[int, Vectors], queries: Vectors) -> tuple[Any, float]:
    """Sets the first setting that reaches the recall."""
    recall = 0.0
    for setting in engine.settings:
        engine.use(setting)
        recall = _recall(engine, state, queries)
        if recall >= RECALL:
            break
    return setting, recall


def _recall(engine: Engine, state: dict[int, Vectors], queries: Vectors) -> float:
    """Returns the share of the K nearest that are found, of 200 queries."""
    ids = np.array(list(state))
    vectors = np.stack(list(state.values()))
    shares = []
    for query in queries[:200]:
        scores = vectors @ query
        nearest = ids[np.argpartition(scores, -K)[-K:]]
        shares.append(len(set(nearest.tolist()) & set(engine.query(query))) / K)
    return float(np.mean(shares))


def _latencies(engine: Engine, queries: Vectors, seconds: float) -> list[float]:
    """Returns the seconds of each query of one caller, one after the other."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    number = 0
    while True:
        began = time.perf_counter()
        if began >= end:
            return latencies
        engine.query(queries[number % len(queries)])
        latencies.append(time.perf_counter() - began)
        number += 1


def _visible_s(
    engine: Engine,
    corpus: Vectors,
    number: int,
    random: np.random.Generator,
    state: dict[int, Vectors],
) -> float:
    """Returns the seconds from the acknowledgement of a vector to the response that has it."""
    vector = 2 * _like(corpus, 1, random)
    key = NEW_ID + CYCLE + number
    engine.upsert([key], vector)
    state[key] = vector[0]
    began = time.perf_counter()
    while key not in engine.query(vector[0]):
        if time.perf_counter() - began > 60:
            raise TimeoutError(f"vector {key} was not found within 60 s")
    return time.perf_counter() - began
