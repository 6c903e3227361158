"""`make bench-retrieval`: filtered and unfiltered retrieval beside other engines: same vectors,
filters and recall.

Each engine is a process of one thread; in every round each has one block, the others wait. An
engine's parameter is the first of its list that reaches a recall of 0.95. Only ratios taken in one
run mean anything. CPU ms are of the engine's process, without a server's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.cores import host
from benchmarks.peers.environments import ENVIRONMENTS
from benchmarks.report import Sheet
from benchmarks.retrieval.corpus import FILTERS, write_corpus
from benchmarks.retrieval.engines import ENGINES

OWN = {
    "rowcast, sent again": str(256 << 20),
    "rowcast, sent first": "0",
    "ScaNN, rescored alike": "alone",
}
"""By name: bytes for compiled filters, or that the search runs without requests."""
_NAMES = {
    "scann": "ScaNN, over-fetching",
    "subset": "exact, matches side by side",
    "faiss_flat": "faiss, 4-bit codes of the matches",
}


class Contestant:
    """A running engine.

    Attributes:
      filters: The bounds of the filters that it can search with.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        """Starts it, and waits until its index is built.

        Raises:
          RuntimeError: The process ended; the message is the last line that it wrote.
        """
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LANCE_CPU_THREADS"), "1"
        )
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        self.name = name
        self._process = subprocess.Popen(command, text=True, env=os.environ | threads, **pipes)
        self.filters: list[int] = self._read()["filters"]

    def send(self, **command: Any) -> dict[str, Any]:
        """Sends a command and returns its response."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends it, and the server that it may have started."""
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        last = "it ended without a word"
        while line := self._process.stdout.readline():
            last = line.strip() or last
            if line.startswith("{"):
                record: dict[str, Any] = json.loads(line)
                return record
        raise RuntimeError(last)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=__doc__)
    parser.add_argument(
        "--size", type=int, default=1_000_000, help="candidates (default 1,000,000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default 1)")
    parser.add_argument(
        "--dir", type=Path, default=Path("build/bench-retrieval"), help="of vectors and indexes"
    )
    parser.add_argument("--only", nargs="*", default=list(ENGINES), help="engines beside rowcast")
    arguments = parser.parse_args()
    console = Console(width=160, highlight=False)
    directory = (arguments.dir / str(arguments.size)).absolute()
    if not (directory / "nearest-1.npy").exists():
        write_corpus(directory, arguments.size)
    environment = ENVIRONMENTS["retrieval"]
    rowcast_command = [sys.executable, "-m", "benchmarks.retrieval.rowcast_engine", str(directory)]
    commands = {name: [*rowcast_command, mode] for name, mode in OWN.items()}
    if environment.problem:
        console.print(f"the other engines are left out: {environment.problem}")
    else:
        script = str(Path(__file__).with_name("engines.py"))
        for name in arguments.only:
            commands[_NAMES.get(name, name)] = [
                environment.program("python"),
                script,
                name,
                str(directory),
            ]
    running = []
    tuned = {}
    for name, command in commands.items():
        try:
            running.append(Contestant(name, command))
        except RuntimeError as problem:
            console.print(f"{name} is left out: {problem}")
            continue
        for below in running[-1].filters:
            tuned[name, below] = running[-1].send(tune=below)
    seen: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    load_before = os.getloadavg()[0]
    for number in range(arguments.rounds):
        for engine_process in running if number % 2 else reversed(running):
            for below in engine_process.filters:
                measurements = engine_process.send(
                    run=below, first=97 * number, seconds=arguments.seconds
                )
                seen[engine_process.name, below].append(measurements)
    for engine_process in running:
        engine_process.close()
    console.print(
        f"{host()}, {os.cpu_count()} cores; load average {load_before:.1f} before the rounds and "
        f"{os.getloadavg()[0]:.1f} after them, of which one process is the benchmark's"
    )
    for name, below in FILTERS.items():
        _sheet(
            name,
            {engine: rounds for (engine, limit), rounds in seen.items() if limit == below},
            tuned,
            below,
        ).show(console)


def _sheet(
    title: str,
    seen: dict[str, list[dict[str, float]]],
    tuned: dict[tuple[str, int], Any],
    below: int,
) -> Sheet:
    rows = []
    first = seen[next(iter(OWN))]
    for name, rounds in seen.items():
        pairs = list(zip(first, rounds, strict=True))
        by_queries = median(mine["per_s"] / theirs["per_s"] for mine, theirs in pairs)
        by_cpu = median(theirs["cpu_ms"] / mine["cpu_ms"] for mine, theirs in pairs)
        figures = [
            median(measurements[figure] for measurements in rounds)
            for figure in ("per_s", "cpu_ms", "p50_ms", "p99_ms")
        ]
        setting = tuned[name, below]
        cells = [f"{figures[0]:.0f}", *(f"{figure:.3f}" for figure in figures[1:])]
        ratios = [f"{by_queries:.2f}", f"{by_cpu:.2f}"]
        rows.append([name, f"{setting['recall']:.3f}", *cells, *ratios, setting["parameter"]])
    columns = (
        "engine",
        "recall@100",
        "queries/s",
        "CPU ms",
        "p50 ms",
        "p99 ms",
        "rowcast / engine",
        "by CPU",
        "parameter",
    )
    return Sheet(f"{title}, one thread", columns, rows)


if __name__ == "__main__":
    main()
