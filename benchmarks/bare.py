"""Bare calls, in a process of their own: a tower or an index with nothing around it.

`python -m benchmarks.bare KIND BUNDLE THREADS` reads lines with a number of seconds and responds
to each with a line of JSON. `f32` and `int8` run the compiled ranking tower on 200 candidates;
`search` searches the index for one query vector at a time. Inputs are ready in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np

from benchmarks.rounds import Block
from bundle.format.manifest import Precision
from bundle.storage.catalog import read_manifest

CANDIDATES = 200
QUERIES = "queries.npy"
"""Beside the bundle of workload Q: its query vectors."""

Step = Callable[[int], object]


def bare_name(kind: str, threads: int) -> str:
    """Returns the name of a bare call among contestants."""
    return f"{kind}, threads {threads}"


class RepeatedCall:
    """One call in its own process, which rests between its blocks.

    Attributes:
      name: The name of the call among contestants.
    """

    def __init__(self, name: str, module: str, *arguments: object) -> None:
        """Starts the process of a module whose main function calls `respond`."""
        self.name = name
        program = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, callers: int, seconds: float) -> Block:
        """Calls again and again from its threads, whatever the number of callers is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        per_s, cpu_ms = json.loads(self._process.stdout.readline())
        return Block(per_s, nan, nan, cpu_ms, 0.0, 0.0)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=30)


def _tower(bundle: Path, precision: Precision) -> Step:
    from runtime.towers import open_tower

    tower = open_tower(bundle, read_manifest(bundle).towers["ranking"], precision)
    random = np.random.default_rng(0)
    shapes = {tensor.name: [size or CANDIDATES for size in tensor.shape] for tensor in tower.inputs}
    values = {name: random.random(shape, np.float32) for name, shape in shapes.items()}
    return lambda _: tower.run(values)


def _search(bundle: Path) -> Step:
    from runtime.engines import open_engine

    entry = read_manifest(bundle).indexes["items"]
    vectors = np.memmap(bundle / entry.vectors, "<f4", "r").reshape(-1, entry.dim)
    engine = open_engine(entry.engine)
    index = engine.load(bundle / entry.directory, entry.distance, vectors)
    queries = np.load(bundle.parent / QUERIES)
    return lambda number: index.search(queries[number % len(queries)][np.newaxis], entry.recall.k)


def _run(step: Step, threads: int, seconds: float) -> tuple[float, float]:
    """Returns the calls per second of all threads, and the CPU of one call in ms."""
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def call(number: int) -> None:
        while not counts[number] or time.perf_counter() < end:
            step(97 * number + counts[number])
            counts[number] += 1

    running = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    cpu_s = time.process_time()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    cpu_ms = (time.process_time() - cpu_s) / sum(counts) * 1e3
    return sum(counts) / (time.perf_counter() - began), cpu_ms


def respond(step: Step, threads: int = 1) -> None:
    """Responds to lines from stdin, each with a number of seconds, until it closes."""
    step(0)
    for line in sys.stdin:
        print(json.dumps(_run(step, threads, float(line))), flush=True)  # noqa: T201 - its response


def main() -> None:
    """Calls what the arguments name."""
    kind = sys.argv[1]
    bundle = Path(sys.argv[2])
    threads = int(sys.argv[3])
    if kind == "search":
        step = _search(bundle)
    else:
        step = _tower(bundle, "int8" if kind == "int8" else "f32")
    respond(step, threads)


if __name__ == "__main__":
    main()
