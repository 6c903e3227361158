"""What else finds the nearest of workload Q, in process, beside bare ScaNN: built, tuned, and given turns."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bundle.staging import read_manifest
from tests.bench.figures import Engine
from tests.bench.limits import Bare, Limit
from tests.bench.peers.environments import ENVIRONMENTS
from tests.bench.workloads import RetrievalWorkload

ENGINES = ("faiss", "hnswlib", "pgvector")
TRUTHS = 100
PROGRAM = Path(__file__).parent / "servers" / "search_engine.py"


class EngineFailed(Exception):
    """An engine's program ended; says what it said last."""


class Running:
    """An engine in its own environment and process."""

    def __init__(self, name: str, place: Path) -> None:
        """Builds its index; takes seconds to minutes.

        Raises:
          EngineFailed: it did not come up.
        """
        command = [ENVIRONMENTS["retrieval"].program("python"), str(PROGRAM), name, str(place), str(os.cpu_count())]
        self._log = (place / f"{name}.log").open("w+b")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.engine = Engine(**self._line())

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EngineFailed(" ".join(last) or "it ended without a word")
        return json.loads(line)

    def measure(self, callers: int, seconds: float) -> Bare:
        """Lets some threads search again and again."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{callers} {seconds}\n")
        self._process.stdin.flush()
        return Bare(*self._line())

    def close(self) -> None:
        """Ends the process, and what it started."""
        self._process.communicate(timeout=60)
        self._log.close()


def write_vectors(work: RetrievalWorkload, place: Path) -> None:
    """Writes what the engines read: candidates, queries, and the exact nearest of the first queries."""
    place.mkdir(parents=True, exist_ok=True)
    page = read_manifest(work.directory)
    dim = work.vectors.shape[1]
    vectors = np.fromfile(work.directory / page.indexes["items"].vectors, "<f4").reshape(-1, dim)
    np.save(place / "vectors.npy", vectors)
    np.save(place / "queries.npy", work.vectors)
    scores = [vectors @ query for query in work.vectors[:TRUTHS]]
    np.save(place / "truth.npy", np.stack([np.argpartition(each, -work.k)[-work.k :] for each in scores]))


def measure(work: RetrievalWorkload, scann: Limit, place: Path, rounds: int, seconds: float) -> Mapping[str, Engine]:
    """Builds the engines one after another, then gives them and bare ScaNN turns; those that fail say why."""
    problem = ENVIRONMENTS["retrieval"].problem
    if problem:
        return dict.fromkeys(ENGINES, Engine(problem=problem))
    write_vectors(work, place)
    page = read_manifest(work.directory).indexes["items"].recall
    found = {"ScaNN": Engine(parameters="the bundle's", recall=page.value)}
    running: dict[str, Running] = {}
    try:
        for name in ENGINES:
            try:
                running[name] = Running(name, place)
                found[name] = running[name].engine
            except EngineFailed as error:
                found[name] = Engine(problem=str(error))
        seen: dict[tuple[str, int], list[Bare]] = {}
        for _ in range(rounds):
            for callers in (1, 2):
                seen.setdefault(("ScaNN", callers), []).append(scann.measure(callers, seconds))
                for name, each in running.items():
                    seen.setdefault((name, callers), []).append(each.measure(callers, seconds))
    finally:
        for each in running.values():
            each.close()
    for name in ("ScaNN", *running):
        found[name] = replace(found[name], one=middle(seen[name, 1]), two=middle(seen[name, 2]))
    return found


def middle(found: list[Bare]) -> Bare:
    """Returns the median of each figure."""
    return Bare(*(median(getattr(each, name) for each in found) for name in ("per_s", "p50_ms", "cpu_ms")))
