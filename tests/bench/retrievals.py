"""What a retrieval costs inside the service, beside ScaNN's bare search: alone, joined with others, and batched.

`python -m tests.bench.retrievals [--scale 1]` writes workload Q and prints the least CPU of one thread, microseconds a
query. It says from where on joining saves nothing, and whether ScaNN's own batches would.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from runtime.scann import ScannIndex, _scann
from runtime.scann_instructions import set_avx2
from service.engine import joining, retrieval
from service.engine.requests import Retrieval, Retrieved
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.generations.loader import Loader
from service.metrics import Metrics
from service.settings import ServiceSettings
from service.wire import messages
from tests.bench import requests
from tests.bench.limits import scann_alone
from tests.bench.workloads import RetrievalWorkload, write_retrieval

JOINED = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Costs:
    """CPU of one thread, least of the rounds, microseconds a query.

    Attributes:
      bare: ScaNN's search for one query after another, with its own copy of the vectors, as its wheel does by itself;
        `with_avx2`: with the kernels that the service has it use; `searched` through `runtime/scann`.
      batched: ScaNN's search of so many queries at once.
      decoded, encoded: the request and the answer, as protobuf.
      joined: features, tower, search and ids of so many queries as one call; 1: alone.
    """

    bare: float
    with_avx2: float
    searched: float
    batched: Mapping[int, float]
    decoded: float
    encoded: float
    joined: Mapping[int, float]


def measure(work: RetrievalWorkload, rounds: int) -> Costs:
    """Measures everything in turns, in this thread."""
    settings = ServiceSettings(root=work.directory.parent.parent)
    loader = Loader(settings.root, None, "sizes", 1, 0, lambda *_: None)
    generation = loader.load(work.model, 1)
    try:
        return _measure(generation, settings, work, rounds)
    finally:
        generation.close()


def _measure(generation: Generation, settings: ServiceSettings, work: RetrievalWorkload, rounds: int) -> Costs:
    (index,) = generation.indexes.values()
    assert isinstance(index.approximate, ScannIndex)
    bodies, vectors, metrics = requests.retrieve_messages(work), work.vectors, Metrics()
    asked = [messages.read_retrieval(body) for body in bodies]
    searcher, scann = index.approximate, scann_alone(work.directory, "items")

    def answered(request: Retrieval) -> Retrieved:
        return retrieval.retrieve(generation, request, settings, Steps("retrieve", time.monotonic() + 60, metrics))

    def joined(n: int) -> None:
        for at in range(0, len(asked), n):
            together = asked[at : at + n]
            if len(together) == 1:
                answered(together[0])
            else:
                joining.split(answered(joining.join(together)), len(together))

    def bare() -> None:
        for query in vectors:
            scann.search(query, work.k, -1, -1)

    def by_itself() -> None:
        set_avx2(_scann, wanted=False)
        bare()
        set_avx2(_scann)

    answers = [answered(request) for request in asked]
    ways: dict[str, Callable[[], object]] = {
        "bare": by_itself,
        "with AVX2": bare,
        "searched": lambda: [searcher.search(query, work.k) for query in vectors[:, np.newaxis]],
        "decoded": lambda: [messages.read_retrieval(body) for body in bodies],
        "encoded": lambda: [messages.retrieved_message(answer).SerializeToString() for answer in answers],
    }
    for n in JOINED:
        ways[f"joined {n}"] = lambda n=n: joined(n)  # type: ignore[misc]
        ways[f"batched {n}"] = (
            lambda n=n: [  # type: ignore[misc]
                scann.search_batched(vectors[at : at + n], work.k, -1, -1, False, 0) for at in range(0, len(vectors), n)
            ]
        )
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.thread_time()
            way()
            least[name] = min(least[name], (time.thread_time() - began) / len(asked) * 1e6)
    return Costs(
        bare=least["bare"],
        with_avx2=least["with AVX2"],
        searched=least["searched"],
        batched={n: least[f"batched {n}"] for n in JOINED},
        decoded=least["decoded"],
        encoded=least["encoded"],
        joined={n: least[f"joined {n}"] for n in JOINED},
    )


def show(costs: Costs, console: Console) -> None:
    """Prints the costs."""
    table = Table("queries at once", "joined, us a query", "over bare", "ScaNN's batch, us a query", "over bare")
    for n in JOINED:
        whole, batch = costs.joined[n], costs.batched[n]
        table.add_row(str(n), f"{whole:.1f}", f"{whole / costs.bare:.2f}", f"{batch:.1f}", f"{batch / costs.bare:.2f}")
    console.print(table)
    console.print(
        f"ScaNN one by one {costs.bare:.1f} us, with AVX2 {costs.with_avx2:.1f}, "
        f"by runtime/scann {costs.searched:.1f}; decoding {costs.decoded:.1f}, encoding {costs.encoded:.1f}"
    )


def main() -> None:
    """Writes the workload, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.retrievals", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: a million candidates")
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rowcast-retrievals-") as scratch:
        show(measure(write_retrieval(Path(scratch), given.scale), given.rounds), Console(width=120))


if __name__ == "__main__":
    main()
