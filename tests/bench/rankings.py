"""`python -m tests.bench.rankings`: what a ranking costs in one process beside its tower; prints microseconds of CPU.

Workload R, in parts as an export cuts its tower and as a whole: the bare tower with its inputs ready in memory, and
each step of a request after it, so that every step finds the caches as a tower leaves them. Then requests of fewer
candidates, alone and joined. Each figure is the least of `--rounds` turns in which all ways are taken in a row.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bundle import paths
from bundle.columns import Column
from bundle.manifest import dump
from bundle.staging import read_manifest
from service.engine import joined_rankings, ranking
from service.engine.requests import Ranked, Ranking, Target
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.generations.loader import Loader
from service.metrics import Metrics
from service.rest import schemas
from service.settings import ServiceSettings
from service.wire.operations import OPERATIONS
from tests.bench.requests import rank_json, rank_messages
from tests.bench.workloads import RankingWorkload, write_ranking

STEPS = ("bare tower", "decode JSON", "decode protobuf", "rank", "encode JSON", "encode protobuf")
CANDIDATES, TOGETHER = (5, 10, 20, 50, 100, 200), (1, 2, 4, 8)
PRECISIONS = ("f32", "int8")
MODELS = ("parts", "whole")

Least = dict[Any, float]
Way = Callable[[int], object]


def write(root: Path, work: RankingWorkload) -> None:
    """Writes models `parts` and `whole`, which are the workload's but for what their towers are run as."""
    page = read_manifest(work.directory)
    for model in MODELS:
        place = root / model / "1"
        shutil.copytree(work.directory, place, copy_function=os.link)
        towers = {
            name: tower.model_copy(update={"parts": tower.parts if model == "parts" else ()})
            for name, tower in page.towers.items()
        }
        (place / paths.MANIFEST).unlink()
        (place / paths.MANIFEST).write_bytes(dump(page.model_copy(update={"model": model, "towers": towers})))


def load(root: Path, model: str, precision: str) -> Generation:
    """Loads a model's version 1, for one thread."""
    loader = Loader(root, precision, "sizes", 1, 0, lambda _: None)  # type: ignore[arg-type]
    return loader.load(model, 1)


def steps_of(generation: Generation, work: RankingWorkload, settings: ServiceSettings) -> dict[str, Way]:
    """Returns what is done for the k-th request, by what it is called."""
    operation, target = OPERATIONS["rank"], Target()
    metrics, tower = Metrics(), next(iter(generation.towers.values()))
    bodies = {False: rank_json(work), True: rank_messages(replace(work, model=""))}
    asked = [schemas.read_request(operation, body, True, target)[0] for body in bodies[True]]
    random = np.random.default_rng(0)
    ready = [
        (
            part.network,
            [
                random.random([size or (1 if part.per == "context" else 200) for size in tensor.shape], np.float32)
                for tensor in part.network.inputs
            ],
        )
        for part in tower.parts
    ]

    def rank(at: int) -> Ranked:
        return ranking.rank(generation, asked[at % 64], settings, Steps("rank", math.inf, metrics))

    for at in range(64):  # until every table counts as one that lies in memory
        answer = rank(at)
    return {
        "bare tower": lambda _: [network.run_in_order(values) for network, values in ready],
        "decode JSON": lambda at: schemas.read_request(operation, bodies[False][at % 64], False, target),
        "decode protobuf": lambda at: schemas.read_request(operation, bodies[True][at % 64], True, target),
        "rank": rank,
        "encode JSON": lambda _: schemas.written(None, operation.write_json(answer, False)),
        "encode protobuf": lambda _: schemas.written(operation.write_message(answer), None),
    }


def joined_of(generation: Generation, work: RankingWorkload, settings: ServiceSettings, m: int) -> dict[int, Way]:
    """Returns what is done for requests of m candidates from the k-th on, by how many are computed as one."""
    whole = [
        schemas.read_request(OPERATIONS["rank"], body, True, Target(work.model))[0] for body in rank_messages(work)
    ]
    asked = [replace(each, candidates=_first(each.candidates, m)) for each in whole]
    metrics = Metrics()

    def way(count: int) -> Way:
        def together(at: int) -> object:
            some: list[Ranking] = [asked[(at * count + place) % 64] for place in range(count)]
            steps = Steps("rank", math.inf, metrics)
            if count == 1:
                return ranking.rank(generation, some[0], settings, steps)
            joined_rankings.likeness(some[0])
            return joined_rankings.split(ranking.rank(generation, joined_rankings.join(some), settings, steps), count)

        return together

    return {count: way(count) for count in TOGETHER}


def _first(columns: Mapping[str, Column], m: int) -> dict[str, Column]:
    return {name: Column(column.values[:m]) for name, column in columns.items()}


def least_us(ways: Mapping[Any, Way], rounds: int, before: Way | None = None) -> Least:
    """Returns the least CPU time of each way, microseconds; `before` each of them, `before` runs, untimed."""
    found: Least = defaultdict(lambda: math.inf)
    for at in range(rounds):
        for name, way in ways.items():
            if before is not None:
                before(at)
            began = time.thread_time_ns()
            way(at)
            found[name] = min(found[name], (time.thread_time_ns() - began) / 1e3)
    return found


def measure(
    root: Path, work: RankingWorkload, rounds: int
) -> tuple[dict[tuple[str, str], Least], dict[tuple[str, int], Least]]:
    """Writes both models; returns the steps by tower and precision, and requests together by precision and size."""
    write(root, work)
    settings = ServiceSettings(root=root)
    steps, joined = {}, {}
    for precision in PRECISIONS:
        for model in MODELS:
            generation = load(root, model, precision)
            ways = steps_of(generation, work, settings)
            steps[model, precision] = least_us(ways, rounds, ways["bare tower"])
            for m in CANDIDATES if model == "parts" else ():
                together = least_us(joined_of(generation, work, settings, m), max(1, rounds // 4))
                joined[precision, m] = {count: us / count for count, us in together.items()}
            generation.close()
    return steps, joined


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.rankings", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1)
    options.add_argument("--rounds", type=int, default=200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        work = write_ranking(Path(scratch) / "written", given.scale)
        steps, joined = measure(Path(scratch) / "read", work, given.rounds)
    console = Console(width=150)
    table = Table("tower", *STEPS, "JSON beside the bare whole", "protobuf beside it", title="R: µs of CPU a request")
    for (model, precision), us in steps.items():
        bare = steps["whole", precision]["bare tower"]
        sums = [us["rank"] + us[f"decode {form}"] + us[f"encode {form}"] - bare for form in ("JSON", "protobuf")]
        table.add_row(
            f"{precision}, {model}", *(f"{us[step]:.0f}" for step in STEPS), *(f"{each:+.0f}" for each in sums)
        )
    console.print(table)
    table = Table(
        "candidates", *(f"{count} as one" for count in TOGETHER), title="µs of CPU of each of so many requests"
    )
    for (precision, m), us in joined.items():
        table.add_row(f"{precision}, {m}", *(f"{us[count]:.0f}" for count in TOGETHER))
    console.print(table)


if __name__ == "__main__":
    main()
