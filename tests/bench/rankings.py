"""`python -m tests.bench.rankings`: what a ranking costs in one process beside its tower; prints microseconds of CPU.

Workload R, in parts as an export cuts its tower and as a whole: the bare tower with its inputs ready in memory, and
requests from their bytes to the bytes of their answers, by step. Then requests of fewer candidates, alone and joined.
All ways take their turns, `BLOCK` requests each; told is the mean of the turn that took least.
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
from service.engine.requests import Ranking, Target
from service.engine.steps import Steps
from service.generations.generation import Generation
from service.generations.loader import Loader
from service.metrics import Metrics
from service.rest import schemas
from service.settings import ServiceSettings
from service.wire.messages import read_ranking
from service.wire.operations import OPERATIONS
from tests.bench.requests import rank_json, rank_messages
from tests.bench.workloads import RankingWorkload, write_ranking

BARE, FORMS = "bare tower", ("JSON", "protobuf")
STEPS = ("decode", "rank", "encode")
BLOCK = 8
CANDIDATES, TOGETHER = (5, 10, 20, 50, 100, 200), (1, 2, 4, 8)
PRECISIONS = ("f32", "int8")
MODELS = ("parts", "whole")

Taken = Mapping[str, float]
"""Microseconds of CPU by step."""
Way = Callable[[int], Taken]


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
    loader = Loader(root, precision, "sizes", 1, 0, lambda *_: None)  # type: ignore[arg-type]
    return loader.load(model, 1)


def ways_of(generation: Generation, work: RankingWorkload, settings: ServiceSettings) -> dict[str, Way]:
    """Returns the bare tower, and what is done for the k-th request by its form."""
    operation, metrics = OPERATIONS["rank"], Metrics()
    bodies = {"JSON": rank_json(work), "protobuf": rank_messages(replace(work, model=""))}
    random = np.random.default_rng(0)
    ready = []
    for part in next(iter(generation.towers.values())).parts:
        n = 1 if part.per == "context" else 200
        shapes = [[size or n for size in tensor.shape] for tensor in part.network.inputs]
        ready.append((part.network, [random.random(shape, np.float32) for shape in shapes]))

    def bare(_: int) -> Taken:
        began = time.thread_time_ns()
        for network, values in ready:
            network.run_in_order(values)
        return {BARE: (time.thread_time_ns() - began) / 1e3}

    def way(form: str) -> Way:
        protobuf = form == "protobuf"

        def answer(at: int) -> Taken:
            times = [time.thread_time_ns()]
            request, several = schemas.read_request(operation, bodies[form][at % 64], protobuf, Target())
            times.append(time.thread_time_ns())
            ranked = ranking.rank(generation, request, settings, Steps("rank", math.inf, metrics))
            times.append(time.thread_time_ns())
            if protobuf:
                schemas.written(operation.write_message(ranked), None)
            else:
                schemas.written(None, operation.write_json(ranked, several))
            times.append(time.thread_time_ns())
            return {step: (end - began) / 1e3 for step, began, end in zip(STEPS, times, times[1:], strict=False)}

        return answer

    return {BARE: bare, **{form: way(form) for form in FORMS}}


def joined_of(generation: Generation, work: RankingWorkload, settings: ServiceSettings, m: int) -> dict[int, Way]:
    """Returns what is done for requests of m candidates from the k-th on, by how many are computed as one."""
    whole = [read_ranking(body, Target(work.model)) for body in rank_messages(work)]
    asked = [replace(each, candidates=_first(each.candidates, m)) for each in whole]
    metrics = Metrics()

    def way(count: int) -> Way:
        def together(at: int) -> Taken:
            some: list[Ranking] = [asked[(at * count + place) % 64] for place in range(count)]
            began, steps = time.thread_time_ns(), Steps("rank", math.inf, metrics)
            if count == 1:
                ranking.rank(generation, some[0], settings, steps)
            else:
                joined_rankings.likeness(some[0])
                answer = ranking.rank(generation, joined_rankings.join(some), settings, steps)
                joined_rankings.split(answer, count)
            return {"each": (time.thread_time_ns() - began) / 1e3 / count}

        return together

    return {count: way(count) for count in TOGETHER}


def _first(columns: Mapping[str, Column], m: int) -> dict[str, Column]:
    return {name: Column(column.values[:m]) for name, column in columns.items()}


def least(ways: Mapping[Any, Way], rounds: int) -> dict[Any, Taken]:
    """Returns the means of each way's turn that took least."""
    turns: dict[Any, list[Taken]] = defaultdict(list)
    for turn in range(rounds):
        for name, way in ways.items():
            seen = [way(turn * BLOCK + place) for place in range(BLOCK)]
            turns[name].append({step: sum(each[step] for each in seen) / BLOCK for step in seen[0]})
    return {name: min(found, key=lambda taken: sum(taken.values())) for name, found in turns.items()}


def measure(
    root: Path, work: RankingWorkload, rounds: int
) -> tuple[dict[tuple[str, str], dict[str, Taken]], dict[tuple[str, int], dict[int, float]]]:
    """Writes both models; returns what takes how long, by tower and precision, and together by precision and size."""
    write(root, work)
    settings = ServiceSettings(root=root)
    steps, joined = {}, {}
    for precision in PRECISIONS:
        for model in MODELS:
            generation = load(root, model, precision)
            steps[model, precision] = least(ways_of(generation, work, settings), rounds)
            for m in CANDIDATES if model == "parts" else ():
                together = least(joined_of(generation, work, settings, m), max(1, rounds // 4))
                joined[precision, m] = {count: taken["each"] for count, taken in together.items()}
            generation.close()
    return steps, joined


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.rankings", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1)
    options.add_argument("--rounds", type=int, default=40)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        work = write_ranking(Path(scratch) / "written", given.scale)
        steps, joined = measure(Path(scratch) / "read", work, given.rounds)
    console = Console(width=150)
    columns = [f"{form}: {step}" for form in FORMS for step in (*STEPS, "beside the bare whole")]
    table = Table("tower", BARE, *columns, title="R: µs of CPU a request")
    for (model, precision), taken in steps.items():
        bare = steps["whole", precision][BARE][BARE]
        told = [f"{taken[BARE][BARE]:.0f}"]
        for form in FORMS:
            told += [*(f"{taken[form][step]:.0f}" for step in STEPS), f"{sum(taken[form].values()) - bare:+.0f}"]
        table.add_row(f"{precision}, {model}", *told)
    console.print(table)
    table = Table(
        "candidates", *(f"{count} as one" for count in TOGETHER), title="µs of CPU of each of so many requests"
    )
    for (precision, m), us in joined.items():
        table.add_row(f"{precision}, {m}", *(f"{us[count]:.0f}" for count in TOGETHER))
    console.print(table)


if __name__ == "__main__":
    main()
